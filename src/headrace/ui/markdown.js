// A small part of Markdown as DOM nodes: fenced code, headings, lists, bold, italics, inline code.
// Text only ever becomes text nodes, so nothing that a model writes can act on the page.

const INLINE = /(`[^`\n]+`)|(\*\*[^*\n]+\*\*)|(\*[^*\s][^*\n]*\*)/;

function inline(parent, text) {
  for (const part of text.split(INLINE).filter(Boolean)) {
    if (/^`[^`]+`$/.test(part)) {
      parent.append(element("code", part.slice(1, -1)));
    } else if (/^\*\*[^*]+\*\*$/.test(part)) {
      parent.append(element("strong", part.slice(2, -2)));
    } else if (/^\*[^*]+\*$/.test(part)) {
      parent.append(element("em", part.slice(1, -1)));
    } else {
      parent.append(part);
    }
  }
  return parent;
}

function element(name, text) {
  const node = document.createElement(name);
  node.textContent = text;
  return node;
}

function list(lines, ordered) {
  const node = document.createElement(ordered ? "ol" : "ul");
  if (ordered) node.start = parseInt(lines[0], 10);
  for (const line of lines) {
    node.append(inline(document.createElement("li"), line.replace(/^\s*([-*+]|\d+[.)])\s+/, "")));
  }
  return node;
}

// The kind of a line decides which block it belongs to; a block is a run of lines of one kind.
function kind(line) {
  if (/^\s*[-*+]\s+\S/.test(line)) return "bullets";
  if (/^\s*\d+[.)]\s+\S/.test(line)) return "numbers";
  if (/^#{1,6}\s+\S/.test(line)) return "heading";
  return line.trim() ? "text" : "blank";
}

function block(lines, what) {
  if (what === "bullets" || what === "numbers") return list(lines, what === "numbers");
  if (what === "heading") {
    return inline(document.createElement("h3"), lines[0].replace(/^#+\s+/, ""));
  }
  return inline(document.createElement("p"), lines.join("\n"));
}

function prose(text) {
  const nodes = [];
  let lines = [];
  let current = "blank";
  const flush = () => {
    if (lines.length && current !== "blank") nodes.push(block(lines, current));
    lines = [];
  };
  for (const line of text.split("\n")) {
    const what = kind(line);
    if (what !== current || what === "heading") flush();
    current = what;
    lines.push(line);
  }
  flush();
  return nodes;
}

/** The nodes of a text. An unclosed fence is code to the end, so that streaming looks right. */
export function render(text) {
  const nodes = [];
  text.split(/^```[^\n]*\n?/m).forEach((part, index) => {
    if (index % 2 === 0) {
      nodes.push(...prose(part));
    } else {
      const pre = document.createElement("pre");
      pre.append(element("code", part.replace(/\n$/, "")));
      nodes.push(pre);
    }
  });
  return nodes;
}
