// The filter of the commits, and the search in keys and values.
import { shown, useAnswer } from "./api.js";
import { CONDITIONS } from "./listing.js";
import { go, hrefOf } from "./place.js";
import { html, useEffect, useRef, useState } from "./preact.js";

const BEFORE = 12; // characters in front of what was sought

const WORDS = { key: "fkey", info: "info", since: "since", until: "until", author: "author" };

/** The conditions that a text states: words as key:plan or since:yesterday, the rest is text in messages. */
export function conditionsOf(text) {
  const found = Object.fromEntries(CONDITIONS.map((name) => [name, ""]));
  const rest = text.replace(/(?:^|\s)(key|info|since|until|author):("[^"]*"|\S+)/g, (_, word, value) => {
    found[WORDS[word]] = value.replace(/^"|"$/g, "");
    return " ";
  });
  found.grep = rest.trim().replace(/\s+/g, " ");
  return found;
}

/** The conditions of a place as such a text. */
export function textOfConditions(place) {
  const quoted = (value) => (/\s/.test(value) ? `"${value}"` : value);
  const words = Object.entries(WORDS).filter(([, name]) => place[name]).map(([word, name]) => `${word}:${quoted(place[name])}`);
  return [...words, place.grep].filter(Boolean).join(" ");
}

/** The text around a place, which begins shortly before what was sought. */
function Excerpt({ text, wanted }) {
  const at = Math.max(text.toLowerCase().indexOf(wanted.toLowerCase()), 0);
  const begin = at > BEFORE ? at - BEFORE : 0;
  return html`<span class="excerpt">${begin ? "…" : ""}${shown(text.slice(begin, at))}<b>${shown(text.slice(at, at + wanted.length))}</b>${shown(text.slice(at + wanted.length))}</span>`;
}

/** The field for both: Enter filters the commits, and the places in the keys and values are listed below. */
export function Filter({ place, rev, field }) {
  const [text, setText] = useState(() => textOfConditions(place));
  const [sought, setSought] = useState("");
  const [isOpen, setOpen] = useState(false);
  const box = useRef(null);
  useEffect(() => setText(textOfConditions(place)), [CONDITIONS.map((name) => place[name]).join("\n")]);
  useEffect(() => {
    const plain = conditionsOf(text).grep;
    const timer = setTimeout(() => setSought(plain.length > 1 ? plain : ""), 250);
    return () => clearTimeout(timer);
  }, [text]);
  const { data } = useAnswer(isOpen && sought && rev ? "/search" : null, { rev, text: sought });
  const submit = (event) => {
    event.preventDefault();
    setOpen(false);
    go({ ...conditionsOf(text), open: "", rev: "", pane: "commits" });
    field.current.blur();
  };
  const leave = (event) => {
    if (!box.current.contains(event.relatedTarget)) setOpen(false);
  };
  const close = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    setOpen(false);
    if (text) setText("");
    if (textOfConditions(place)) go(conditionsOf(""));
    field.current.blur();
  };
  return html`<form class="filter" role="search" ref=${box} onSubmit=${submit} onFocusOut=${leave} onKeyDown=${close}>
    <input ref=${field} type="search" value=${text} aria-label="Filter commits and search values" spellcheck="false" autocomplete="off"
      placeholder="filter and search   /" onFocus=${() => setOpen(true)} onInput=${(event) => setText(event.target.value)} />
    ${isOpen ? html`<div class="found">
      <p class="is-dim">Enter filters the commits by message or info. Also <code>key:plan</code> <code>info:outcome=error</code> <code>since:yesterday</code> <code>until:2026-11-20</code> <code>author:ed25519:09af</code></p>
      ${data ? html`<p class="is-dim" aria-live="polite">${data.places.length}${data.complete ? "" : "+"} places in ${data.keys.toLocaleString("en")} keys of this commit</p>
        <ul>${data.places.slice(0, 50).map((found) => html`<li><a href=${hrefOf({ key: found.key, path: found.path ?? "", page: "", tab: "", pane: "value" })} onClick=${() => setOpen(false)}>
          <b>${shown(found.key)}</b> <span class="mono is-dim">${shown(found.path ?? "")}</span> <${Excerpt} text=${found.excerpt} wanted=${sought} /></a></li>`)}</ul>` : null}
    </div>` : null}
  </form>`;
}
