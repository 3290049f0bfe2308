// Layers and heads, and which tokens a token reads; see attention_page.py.
const {tokens, segments, special, layers: L, heads: A, levels} = data;
const S = tokens.length, cell = S * S, SHOWN = 48, LINES = 1500, LEAST = 0.02;
let codes;                          // a byte for each weight, [L, A, S, S]
let chosen = new Set();             // indices of heads, layer * A + head
let mean = new Float32Array(cell);  // over these
let shown = [];                     // indices of the tokens that are not hidden
let held = null, pointed = null;    // {side, token}

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), sign => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const percent = share => share >= 0.0995 ? `${Math.round(share * 100)}%`
  : `${(share * 100).toFixed(1)}%`;

function visible(from, to) {
  const way = find("direction").value;
  if (way === "all") return true;
  if (way === "same") return segments[from] === segments[to];
  return way === `${segments[from]}${segments[to]}`;
}

// The head that reads words other than a token's neighbours most sharply, which is shown first.
function sharpest() {
  let best = 0, most = -1;
  for (let head = 0; head < L * A; head++) {
    let sum = 0;
    for (let from = 0; from < S; from++) {
      let top = 0;
      for (let to = 0; to < S; to++) {
        if (Math.abs(to - from) > 1 && !special[from] && !special[to]) {
          top = Math.max(top, codes[head * cell + from * S + to]);
        }
      }
      sum += top;
    }
    if (sum > most) [best, most] = [head, sum];
  }
  return best;
}

// A head as a square of at most SHOWN points on a side, each the largest weight below it.
function draw(canvas, head) {
  const n = shown.length, size = Math.max(1, Math.min(n, SHOWN));
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d"), image = context.createImageData(size, size);
  const color = matchMedia("(prefers-color-scheme: dark)").matches ? [108, 176, 255] : [31, 111, 235];
  for (let row = 0; row < n; row++) {
    for (let column = 0; column < n; column++) {
      const weight = codes[head * cell + shown[row] * S + shown[column]] / levels;
      const place = 4 * (Math.floor(row * size / n) * size + Math.floor(column * size / n));
      const alpha = 255 * Math.sqrt(weight);
      if (alpha > image.data[place + 3]) image.data.set([...color, alpha], place);
    }
  }
  context.putImageData(image, 0, 0);
}

function move(elements, current, event, columns) {
  const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns};
  let next = current + (steps[event.key] ?? NaN);
  if (event.key === "Home") next = 0;
  if (event.key === "End") next = elements.length - 1;
  if (!(event.key in steps) && !["Home", "End"].includes(event.key)) return;
  event.preventDefault();
  if (!elements[next]) return;
  elements[current].tabIndex = -1;
  elements[next].tabIndex = 0;
  elements[next].focus();
}

const squares = [];
function buildHeads() {
  const grid = find("heads");
  grid.style.gridTemplateColumns = `auto repeat(${A}, minmax(1.35rem, 1fr))`;
  const all = make("button", "row", "all");
  all.addEventListener("click", () => choose([...Array(L * A).keys()], false));
  all.setAttribute("aria-label", "average all heads of all layers");
  grid.append(all);
  for (let head = 0; head < A; head++) grid.append(make("span", "", head));
  for (let layer = 0; layer < L; layer++) {
    const row = make("button", "row", layer);
    const own = [...Array(A).keys()].map(head => layer * A + head);
    row.title = `average the heads of layer ${layer}`;
    row.setAttribute("aria-label", row.title);
    row.addEventListener("click", event => choose(own, event.shiftKey || find("several").checked));
    grid.append(row);
    for (const index of own) {
      const square = make("button", "head");
      square.title = `layer ${layer}, head ${index - layer * A}`;
      square.setAttribute("aria-label", square.title);
      square.tabIndex = index ? -1 : 0;
      square.append(make("canvas"));
      square.addEventListener("click", event => {
        const more = event.shiftKey || event.ctrlKey || event.metaKey || find("several").checked;
        choose([index], more);
      });
      square.addEventListener("keydown", event => move(squares, index, event, A));
      squares.push(square);
      grid.append(square);
    }
  }
}

// Chooses heads, besides those that are or in their place; all of them again are taken out.
function choose(heads, more) {
  const before = more ? chosen : new Set();
  const gone = more && heads.every(head => before.has(head));
  chosen = new Set(gone ? [...before].filter(head => !heads.includes(head)) : [...before, ...heads]);
  if (!chosen.size) chosen = new Set(heads);
  mean = new Float32Array(cell);
  for (const head of chosen) {
    for (let i = 0; i < cell; i++) mean[i] += codes[head * cell + i];
  }
  for (let i = 0; i < cell; i++) mean[i] /= levels * chosen.size;
  squares.forEach((square, index) => square.setAttribute("aria-pressed", chosen.has(index)));
  lines();
}

function described() {
  const [first] = chosen, layer = Math.floor(first / A);
  if (chosen.size === 1) return `layer ${layer}, head ${first % A}`;
  if (chosen.size === L * A) return `mean of all ${L * A} heads`;
  const whole = chosen.size === A && [...chosen].every(head => Math.floor(head / A) === layer);
  return whole ? `mean of the ${A} heads of layer ${layer}` : `mean of ${chosen.size} heads`;
}

const columns = {from: [], to: []}, shares = {from: [], to: []};
function buildTokens() {
  const box = find("tokens");
  box.replaceChildren();
  const parts = [["column from", "from", true], ["column", "from", false], [], ["column", "to", false],
    ["column to", "to", true]];
  for (const [kind, side, ofTokens] of parts) {
    if (!kind) {
      box.append(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
      box.lastChild.setAttribute("aria-hidden", "true");
      continue;
    }
    const column = make("div", kind);
    (ofTokens ? columns : shares)[side] = shown.map((token, place) => {
      if (!ofTokens) return make("span", side === "to" ? "share of-right" : "share");
      const button = make("button", segments[token] ? "second" : "", tokens[token]);
      button.dir = "auto";
      button.title = tokens[token];
      button.tabIndex = place ? -1 : 0;
      const self = {side, token};
      const on = () => { pointed = self; lines(); };
      const off = () => { pointed = null; lines(); };
      button.addEventListener("mouseenter", on);
      button.addEventListener("mouseleave", off);
      button.addEventListener("focus", () => button.matches(":focus-visible") && on());
      button.addEventListener("blur", off);
      button.addEventListener("click", () => {
        held = held && held.side === side && held.token === token ? null : self;
        lines();
      });
      button.addEventListener("keydown", event => {
        if (event.key === "Escape") { held = pointed = null; lines(); }
        if (["ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) {
          move(columns[side], place, event, 1);
        }
      });
      return button;
    });
    column.append(...(ofTokens ? columns : shares)[side]);
    box.append(column);
  }
}

function lines() {
  const svg = find("tokens").querySelector("svg"), now = pointed || held;
  if (!svg) return;
  const edges = [];
  for (const from of shown) {
    for (const to of shown) {
      const weight = mean[from * S + to];
      if (!visible(from, to) || weight <= 0) continue;
      if (now ? now.token === (now.side === "from" ? from : to) : weight >= LEAST) {
        edges.push([weight, from, to]);
      }
    }
  }
  edges.sort((a, b) => b[0] - a[0]).splice(LINES);
  const width = svg.clientWidth, top = svg.getBoundingClientRect().top;
  const heights = side => columns[side].map(button => {
    const box = button.getBoundingClientRect();
    return box.top - top + box.height / 2;
  });
  const left = heights("from"), right = heights("to");
  const place = new Map(shown.map((token, index) => [token, index])), bins = new Map();
  for (const [weight, from, to] of edges) {
    const bin = Math.max(1, Math.round(20 * weight));
    const [a, b] = [left[place.get(from)].toFixed(1), right[place.get(to)].toFixed(1)];
    const path = `M0 ${a}C${width / 2} ${a} ${width / 2} ${b} ${width} ${b}`;
    bins.set(bin, (bins.get(bin) || "") + path);
  }
  svg.replaceChildren(...[...bins].sort((a, b) => a[0] - b[0]).map(([bin, path]) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", "path");
    element.setAttribute("d", path);
    element.setAttribute("stroke-opacity", Math.min(1, bin / 20 + 0.03));
    return element;
  }));
  for (const side of ["from", "to"]) {
    shown.forEach((token, index) => {
      const other = now && now.side !== side;
      const [from, to] = side === "from" ? [token, now?.token] : [now?.token, token];
      const share = other && visible(from, to) ? mean[from * S + to] : null;
      shares[side][index].textContent = share === null ? "" : percent(share);
      columns[side][index].style.backgroundColor = share === null ? ""
        : `color-mix(in srgb, var(--accent) ${Math.round(70 * Math.sqrt(share))}%, transparent)`;
      const own = object => object && object.side === side && object.token === token;
      columns[side][index].classList.toggle("now", !!own(now));
      columns[side][index].setAttribute("aria-pressed", !!own(held));
    });
  }
  let text = described();
  if (now) {
    const best = edges.slice(0, 3).map(([weight, from, to]) =>
      `${tokens[now.side === "from" ? to : from]} ${percent(weight)}`);
    const verb = now.side === "from" ? "reads" : "is read by";
    text += `: “${tokens[now.token]}” ${verb} ${best.join(", ") || "nothing that is shown"}`;
  }
  find("state").textContent = text;
}

function rebuild() {
  shown = [...Array(S).keys()].filter(token => !(find("hidden").checked && special[token]));
  held = pointed = null;
  buildTokens();
  squares.forEach((square, head) => draw(square.firstChild, head));
  lines();
}

async function start() {
  if (!("DecompressionStream" in window)) {
    find("state").textContent = "This page needs a browser of 2023 or later (DecompressionStream).";
    return;
  }
  codes = await inflate(data.weights);
  find("names").textContent = [...new Set(tokens.filter((_, token) => special[token]))].join(" and ");
  find("pair").hidden = !segments.includes(1);
  buildHeads();
  find("hidden").addEventListener("change", rebuild);
  find("direction").addEventListener("change", lines);
  addEventListener("resize", lines);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rebuild);
  rebuild();
  choose([sharpest()], false);
  document.documentElement.dataset.ready = "yes";
}
start();
