// A word in its sentences, layer by layer; see senses_page.py.
const {sentences, names, labels, points, nearest, side} = data;
const N = sentences.length, WRONG = 50, NEAR = 12;
const COLORS = ["#2f7fd6", "#e0701a", "#1f9d6b", "#c4478f", "#8a6fd1", "#b39500", "#3aa6b9", "#9a5b3c"];
const SHAPES = [
  "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z", "M-2.7 -2.7h5.4v5.4h-5.4z", "M0 -3.5L3.4 2.6H-3.4z",
  "M0 -3.7L3.7 0L0 3.7L-3.7 0z",
];
const draw = (tag, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};
const percent = share => `${(100 * share).toFixed(1)}%`;
const color = sense => COLORS[sense % COLORS.length];
const shape = sense => SHAPES[sense % SHAPES.length];
const counts = names.map((_, sense) => labels.filter(label => label === sense).length);
const frequent = Math.max(...counts) / N;
const scores = nearest && nearest.map(own => own.filter((sense, i) => sense === labels[i]).length / N);
let layer = points.length - 1, hidden = new Set(), now = null;
const marks = [], bars = [];

const place = i => [points[layer][2 * i], -points[layer][2 * i + 1]].map(x => 100 * x / side);
const isWrong = i => nearest && nearest[layer][i] !== labels[i];

function paragraph(i) {
  const text = make("p", "example");
  text.dir = "auto";
  text.append(sentences[i][0], make("strong", "", sentences[i][1]), sentences[i][2]);
  return text;
}

function point(i) {
  now = i;
  marks.forEach((mark, other) => mark.classList.toggle("now", other === i));
  const box = find("sentence");
  if (i === null) return;
  find("picture").append(marks[i]);
  const sense = make("span", "sense", names[labels[i]]);
  sense.style.color = color(labels[i]);
  const text = paragraph(i);
  box.replaceChildren(sense, isWrong(i) ? ` (nearer to ${names[nearest[layer][i]]})` : "", ": ",
    ...text.childNodes);
}

function show() {
  marks.forEach((mark, i) => {
    const [x, y] = place(i);
    mark.style.transform = `translate(${x}px, ${y}px)`;
    mark.classList.toggle("wrong", !!isWrong(i));
    mark.style.display = hidden.has(labels[i]) ? "none" : "";
  });
  bars.forEach((bar, index) => bar.setAttribute("aria-pressed", index === layer));
  const title = layer ? `${layer} of ${points.length - 1}` : "0, the embeddings";
  find("state").textContent = scores ? `${title}: ${percent(scores[layer])} right` : title;
  find("layer").value = layer;
  find("layer").setAttribute("aria-valuetext", find("state").textContent);
  if (now !== null) point(now);
  if (!nearest) return;
  const wrong = labels.map((_, i) => i).filter(isWrong);
  const list = wrong.slice(0, WRONG).map(i => {
    const text = paragraph(i);
    text.append(make("span", "note", ` ${names[labels[i]]} \u2192 ${names[nearest[layer][i]]}`));
    return text;
  });
  const left = wrong.length - list.length;
  find("wrong").replaceChildren(...list);
  if (!list.length) find("wrong").append(make("p", "note", "None at this layer."));
  if (left) find("wrong").append(make("p", "note", `and ${left} more`));
}

function build() {
  names.forEach((name, sense) => {
    const label = make("label"), box = make("input"), sample = draw("svg", {viewBox: "-5 -5 10 10"});
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => {
      hidden[box.checked ? "delete" : "add"](sense);
      show();
    });
    sample.append(draw("path", {d: shape(sense), fill: color(sense)}));
    label.append(box, sample, make("span", "", `${name} (${counts[sense]})`));
    find("senses").append(label);
  });
  const picture = find("picture");
  picture.append(draw("path", {d: "M-108 0H108M0 -108V108", class: "axes"}));
  labels.forEach((sense, i) => {
    marks.push(draw("path", {d: shape(sense), fill: color(sense), class: "mark"}));
    picture.append(marks[i]);
  });
  find("layer").max = points.length - 1;
  find("layer").addEventListener("input", event => { layer = +event.target.value; show(); });
  const closest = event => {
    const box = picture.getBoundingClientRect(), scale = 220 / box.width;
    const x = (event.clientX - box.left) * scale - 110, y = (event.clientY - box.top) * scale - 110;
    let best = null, least = NEAR;
    labels.forEach((sense, i) => {
      const [a, b] = place(i), distance = Math.hypot(a - x, b - y);
      if (!hidden.has(sense) && distance < least) [best, least] = [i, distance];
    });
    if (best !== null && best !== now) point(best);
  };
  picture.addEventListener("pointermove", closest);
  picture.addEventListener("click", closest);
  picture.addEventListener("keydown", event => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (!step || hidden.size === names.length) return;
    event.preventDefault();
    let next = now === null ? (step > 0 ? 0 : N - 1) : (now + step + N) % N;
    while (hidden.has(labels[next])) next = (next + step + N) % N;
    point(next);
  });
  find("scores").hidden = find("outlined").hidden = !scores;
  (scores || []).forEach((score, index) => {
    const bar = make("button"), track = make("span", "track"), line = make("span", "line");
    const full = make("span", "full");
    full.style.width = `${100 * score}%`;
    line.style.left = `${100 * frequent}%`;
    track.append(full, line);
    bar.append(make("span", "", index), track, make("span", "", percent(score)));
    bar.setAttribute("aria-label", `layer ${index}: ${percent(score)} right`);
    bar.addEventListener("click", () => { layer = index; show(); });
    bars.push(bar);
    find("bars").append(bar);
  });
  if (scores) find("bars").append(make("p", "note", `most frequent sense: ${percent(frequent)}`));
  show();
  document.documentElement.dataset.ready = "yes";
}
build();
