"use strict";
// What the scripts of look's pages share, before each of them. All text of others is set by
// textContent.
const data = JSON.parse(document.getElementById("data").textContent);
const find = id => document.getElementById(id);
const make = (tag, kind, text) => {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  if (text !== undefined) element.textContent = text;
  return element;
};
