// Bytes in hexadecimal, and pictures.
import { get, grouped, requestOf, shown } from "./api.js";
import { html, useState } from "./preact.js";
import { usePages } from "./widgets.js";

const ROWS = 64;

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

function hexLines(bytes, offset) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.slice(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${(offset + at).toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

/** A picture as a thumbnail; a click shows it whole. */
export function Picture({ rev, name, path }) {
  const [isWhole, setWhole] = useState(false);
  const [size, setSize] = useState("");
  const request = requestOf("/bytes", { rev, key: name, path });
  const source = globalThis.vstateAnswers ? globalThis.vstateAnswers(request)?.url : `api/v1${request}`;
  if (!source) return html`<p class="note">This file does not hold the picture.</p>`;
  return html`<figure class=${`picture ${isWhole ? "is-whole" : ""}`}>
    <button type="button" onClick=${() => setWhole(!isWhole)} title=${isWhole ? "make it small" : "show it whole"}>
      <img src=${source} alt=${`the picture ${shown(name)}`} onLoad=${(event) => setSize(`${event.target.naturalWidth} × ${event.target.naturalHeight}`)} />
    </button>
    <figcaption>${size}</figcaption>
  </figure>`;
}

export function BytesValue({ answer, rev, name, since }) {
  const { view } = answer;
  const load = (first) => get("/value", { rev, key: name, path: answer.path, since, first, limit: ROWS });
  const left = (next) => `${grouped(view.size - next * 16)} more bytes`;
  const [pages, button] = usePages(answer, load, left, (page) => page.view.next);
  return html`<div class="bytes-value">
    ${view.picture && html`<${Picture} rev=${rev} name=${name} path=${answer.path} />`}
    ${view.media && !view.picture && html`<p class="note">${view.media}</p>`}
    <pre class="hex" tabindex="0">${pages.map((page) => hexLines(bytesOf(page.view.data), page.view.first * 16)).join("\n")}</pre>
    ${button}
  </div>`;
}
