// The chat page: talks to /v1 of the server it came from, and to nothing else.

import { render } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const state = { model: null, messages: [], abort: null, usesCompletions: false };

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const key = sessionStorage.getItem("headrace-key");
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function call(path, body, signal) {
  const method = body ? "POST" : "GET";
  const options = { method, headers: headers(), signal, body: body && JSON.stringify(body) };
  const response = await fetch(path, options);
  if (response.ok) return response;
  const text = await response.text();
  let message = text || response.statusText;
  try {
    message = JSON.parse(text).error.message;
  } catch { /* not the API's own envelope: a proxy's page, say */ }
  throw new ApiError(response.status, message);
}

// Yields the data of each server-sent event; comments and other fields are skipped.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (data.length) yield data.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

// ---- the model ---------------------------------------------------------------------------------

function setModelState(name, note) {
  $("model").dataset.state = name;
  $("model-note").textContent = note;
}

async function findModels() {
  try {
    const { data } = await (await call("v1/models")).json();
    $("key-form").hidden = true;
    if (!data.length) throw new ApiError(503, "no model is served");
    const known = new Map(data.map((model) => [model.id, model]));
    state.model = known.get(state.model?.id) ?? data[0];
    $("models").replaceChildren(...data.map((model) => new Option(model.id, model.id)));
    $("models").value = state.model.id;
    $("models").hidden = data.length === 1;
    showModel();
  } catch (error) {
    state.model = null;
    $("key-form").hidden = error.status !== 401;
    setModelState("gone", error.status === 401 ? "an API key is needed" : "no answer yet …");
    if (error.status !== 401) setTimeout(findModels, 2000);
  }
  showSnippets();
  showControls();
}

function showModel() {
  const length = state.model.max_model_len;
  const context = length ? `${length.toLocaleString("en")} tokens of context` : "";
  const isOnly = $("models").hidden;
  setModelState("ready", [isOnly && state.model.id, context].filter(Boolean).join(" · "));
}

// ---- the snippets ------------------------------------------------------------------------------

function showSnippets() {
  const base = new URL("v1", location.href).href;
  const model = state.model?.id ?? "MODEL";
  const key = sessionStorage.getItem("headrace-key") ? "$HEADRACE_API_KEY" : "";
  $("curl").textContent = [
    `curl ${base}/chat/completions \\`,
    ...(key ? [`  -H "Authorization: Bearer ${key}" \\`] : []),
    `  -H "Content-Type: application/json" \\`,
    `  -d '${JSON.stringify({ model, messages: [{ role: "user", content: "Hello!" }] })}'`,
  ].join("\n");
  $("python").textContent = [
    ...(key ? ["import os"] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(base)}, ` +
      `api_key=${key ? 'os.environ["HEADRACE_API_KEY"]' : '"none"'})`,
    "answer = client.chat.completions.create(",
    `    model=${JSON.stringify(model)},`,
    '    messages=[{"role": "user", "content": "Hello!"}],',
    ")",
    "print(answer.choices[0].message.content)",
  ].join("\n");
}

async function copy(button) {
  const code = $(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch { // no clipboard without HTTPS: leave the text selected instead
    getSelection().selectAllChildren(code);
    return;
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

// ---- the conversation --------------------------------------------------------------------------

function addTurn(role, text = "") {
  const turn = document.createElement("article");
  turn.className = `turn ${role}`;
  turn.append(...(role === "user" ? [text] : render(text)));
  $("thread").append(turn);
  $("welcome").hidden = true;
  return turn;
}

function addNote(text, className) {
  const note = document.createElement("p");
  note.className = className;
  note.textContent = text;
  $("thread").append(note);
  note.scrollIntoView({ block: "nearest" });
}

function request() {
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  const common = {
    model: state.model.id,
    temperature: number("temperature"),
    max_tokens: number("max-tokens"),
    seed: number("seed"),
    stream: true,
    stream_options: { include_usage: true },
  };
  if (state.usesCompletions) {
    return { ...common, prompt: state.messages.map((message) => message.content).join("\n") };
  }
  const system = $("system").value.trim();
  const first = system ? [{ role: "system", content: system }] : [];
  return { ...common, messages: [...first, ...state.messages] };
}

async function open(signal) {
  const path = () => (state.usesCompletions ? "v1/completions" : "v1/chat/completions");
  try {
    return await call(path(), request(), signal);
  } catch (error) {
    // A base model has no chat template: it completes text instead.
    const isBase = error.status === 400 && /chat template/i.test(error.message);
    if (!isBase || state.usesCompletions) throw error;
    state.usesCompletions = true;
    return call(path(), request(), signal);
  }
}

// Streams one answer into `turn`; `answer` holds what has arrived even if this throws.
async function stream(turn, answer) {
  const response = await open(state.abort.signal);
  let frame = 0;
  for await (const data of events(response)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(500, chunk.error.message);
    answer.usage = chunk.usage ?? answer.usage;
    const choice = chunk.choices?.[0];
    const text = choice?.delta?.content ?? choice?.text;
    if (!text) continue;
    answer.firstMs ??= performance.now();
    answer.lastMs = performance.now();
    answer.text += text;
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      show(turn, answer.text);
    });
  }
  cancelAnimationFrame(frame);
}

function show(turn, text) {
  const isAtEnd = innerHeight + scrollY >= document.body.scrollHeight - 80;
  turn.replaceChildren(...render(text));
  if (isAtEnd) $("composer").scrollIntoView({ block: "nearest" });
}

function facts(answer, startMs) {
  const parts = [];
  const count = answer.usage?.completion_tokens;
  if (count) parts.push(`${count} tokens`);
  if (answer.firstMs) parts.push(`first after ${((answer.firstMs - startMs) / 1000).toFixed(2)} s`);
  const decodeS = (answer.lastMs - answer.firstMs) / 1000;
  if (count > 1 && decodeS > 0) parts.push(`${((count - 1) / decodeS).toFixed(1)} tokens/s`);
  return parts.join(" · ");
}

async function send() {
  const content = $("prompt").value.trim();
  if (!content || !state.model || state.abort) return;
  $("prompt").value = "";
  fitPrompt();
  state.messages.push({ role: "user", content });
  addTurn("user", content);
  const turn = addTurn("assistant");
  turn.classList.add("waiting");
  state.abort = new AbortController();
  $("code").open = false;
  showControls();
  const answer = { text: "", usage: null, firstMs: null, lastMs: null };
  const startMs = performance.now();
  let failure = null;
  try {
    await stream(turn, answer);
  } catch (error) {
    failure = error;
  }
  show(turn, answer.text);
  turn.classList.remove("waiting");
  finish(answer, failure, facts(answer, startMs));
}

function finish(answer, failure, note) {
  state.abort = null;
  if (answer.text) {
    state.messages.push({ role: "assistant", content: answer.text });
  } else if (failure) {
    state.messages.pop(); // nothing was answered: the question may be asked again
  }
  if (failure?.name === "AbortError") {
    addNote("stopped", "facts");
  } else if (failure) {
    addNote(failure.message || "The connection was lost.", "facts error");
    if (failure.status === 401) findModels();
  } else if (note) {
    addNote(note, "facts");
  }
  showControls();
  $("prompt").focus();
}

// ---- the controls ------------------------------------------------------------------------------

function showControls() {
  $("send").hidden = Boolean(state.abort);
  $("stop").hidden = !state.abort;
  $("send").disabled = !state.model || !$("prompt").value.trim();
  $("reset").disabled = !state.messages.length || Boolean(state.abort);
}

function fitPrompt() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight}px`;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("prompt").addEventListener("input", () => {
  fitPrompt();
  showControls();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") state.abort?.abort();
});
$("stop").addEventListener("click", () => state.abort?.abort());
$("reset").addEventListener("click", () => {
  state.messages = [];
  $("thread").replaceChildren();
  $("welcome").hidden = false;
  showControls();
  $("prompt").focus();
});
$("models").addEventListener("change", () => {
  state.model = { id: $("models").value };
  state.usesCompletions = false;
  findModels();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("headrace-key", $("key").value);
  findModels();
});
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", () => copy(button));
}

findModels();
