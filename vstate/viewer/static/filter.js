// The filter of the commits, and the search in keys and values.
import { ofBranch } from "./branches.js";
import { counted, get, named, nameOf, shown, toggled, useAnswer } from "./api.js";
import { CONDITIONS } from "./listing.js";
import { go, hrefOf } from "./place.js";
import { html, useEffect, useRef, useState } from "./preact.js";
import { Chip, Waiting } from "./widgets.js";

const BEFORE = 12; // characters in front of what was sought
const SOME = 3; // places of one key that are listed at once

const WORDS = { message: "grep", key: "fkey", info: "info", since: "since", until: "until", author: "author" };

/** The conditions that a text states: words as key:plan or since:yesterday, the rest is text in messages. */
export function conditionsOf(text) {
  const found = Object.fromEntries(CONDITIONS.map((name) => [name, ""]));
  const rest = text.replace(/(?:^|\s)(message|key|info|since|until|author):("[^"]*"|\S+)/g, (_, word, value) => {
    found[WORDS[word]] = value.replace(/^"|"$/g, "");
    return " ";
  });
  found.grep ||= rest.trim().replace(/\s+/g, " ");
  return found;
}

export function textOfConditions(place) {
  const quoted = (value) => (/\s/.test(value) ? `"${value}"` : value);
  const words = Object.entries(WORDS).filter(([, name]) => place[name]).map(([word, name]) => `${word}:${quoted(place[name])}`);
  return words.join(" ");
}

function Excerpt({ text, wanted }) {
  const at = Math.max(text.toLowerCase().indexOf(wanted.toLowerCase()), 0);
  const begin = at > BEFORE ? at - BEFORE : 0;
  return html`<span class="excerpt">${begin ? "…" : ""}${shown(text.slice(begin, at))}<b>${shown(text.slice(at, at + wanted.length))}</b>${shown(text.slice(at + wanted.length))}</span>`;
}

const ofPlace = (found) => ({ key: found.key, path: found.path ?? "", page: "", tab: "", pane: "value" });
const ofCommit = (commit) => ({ rev: commit.id, page: "", pane: "keys" });

function Found({ data, sought, onChoose }) {
  const [open, setOpen] = useState(new Set());
  const keys = new Map();
  for (const found of data.places) keys.set(found.key, [...(keys.get(found.key) ?? []), found]);
  const place = (found) => html`<li><a href=${hrefOf(ofPlace(found))} onClick=${onChoose}>
    <span class="mono is-dim">${found.path === null ? "the key" : shown(found.path) || "the value"}</span> <${Excerpt} text=${found.excerpt} wanted=${sought} /></a></li>`;
  const { commit, branch } = data;
  const places = counted(data.places.length, "place");
  return html`
    ${branch && html`<p><a href=${hrefOf(ofBranch(branch))} onClick=${onChoose}>Go to the branch ${nameOf(branch)}</a></p>`}
    ${commit && html`<p><a href=${hrefOf(ofCommit(commit))} onClick=${onChoose}>Go to the commit <span class="mono">${commit.short.slice(0, 8)}</span> ${shown(commit.message)}</a></p>`}
    <p class="is-dim" aria-live="polite">${globalThis.vstateAnswers ? `${places} in what this file holds` : `${places}${data.complete ? "" : " or more"}; ${counted(data.keys, "key")} of this commit searched`}${data.unread ? `, ${counted(data.unread, "value")} not readable` : ""}</p>
    <ul>${[...keys].map(([key, places]) => html`<li key=${key}><span class="found-key">${named(key)}</span>
      <ul>${places.slice(0, open.has(key) ? places.length : SOME).map(place)}</ul>
      ${places.length > SOME && html`<${Chip} onClick=${() => setOpen(toggled(open, key))}>${open.has(key) ? "fewer" : `${places.length - SOME} more in ${named(key)}`}</${Chip}>`}</li>`)}</ul>`;
}

/** The field for both: Enter filters the commits, and the places in the keys and values are listed below. */
export function Filter({ place, rev, field }) {
  const conditions = textOfConditions(place);
  const [text, setText] = useState(conditions);
  const [sought, setSought] = useState("");
  const [isOpen, setOpen] = useState(false);
  const box = useRef(null);
  useEffect(() => setText(conditions), [conditions]);
  useEffect(() => {
    const plain = conditionsOf(text).grep;
    const timer = setTimeout(() => setSought(plain.length > 1 ? plain : ""), 250);
    return () => clearTimeout(timer);
  }, [text]);
  const { data, loading } = useAnswer(isOpen && sought && rev ? "/search" : null, { rev, text: sought });
  const [isWaiting, setWaiting] = useState(false); // Enter was pressed before the answer was here
  const leave = () => {
    setOpen(false);
    setText(conditions); // what was only searched for is no filter
  };
  const submit = (event) => {
    event.preventDefault();
    const conditions = conditionsOf(text);
    const isText = conditions.grep === text.trim() && conditions.grep && rev;
    setWaiting(true);
    (isText ? get("/search", { rev, text: conditions.grep }) : Promise.reject()).catch(() => ({ places: [] })).then(({ commit, branch, places: [first] }) => {
      setWaiting(false);
      setOpen(false);
      field.current.blur();
      const place = branch ? ofBranch(branch) : commit ? ofCommit(commit) : first && ofPlace(first);
      if (place) leave();
      go(place ?? { ...conditions, open: "", rev: "", pane: "commits" });
    });
  };
  const press = (event) => {
    if (event.key === "Escape") {
      setOpen(false);
      setText("");
      if (conditions) go(conditionsOf(""));
      document.activeElement.blur();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const stops = [field.current, ...box.current.querySelectorAll(".found a, .found button")];
      const at = stops.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
      stops[Math.min(Math.max(at, 0), stops.length - 1)].focus();
      event.preventDefault();
    } else return;
    event.stopPropagation();
  };
  return html`<form class="filter" role="search" ref=${box} onSubmit=${submit} onKeyDown=${press}
      onfocusout=${(event) => box.current.contains(event.relatedTarget) || !document.hasFocus() || leave()}>
    <input ref=${field} type="search" value=${text} aria-label="Filter commits and search values" spellcheck=${false} autocomplete="off"
      placeholder="filter and search   /" onFocus=${() => setOpen(true)} onInput=${(event) => { setOpen(true); setText(event.target.value); }} />
    ${isOpen && html`<div class="found" tabindex="-1">
      ${isWaiting || (loading && sought) ? html`<${Waiting}>Searching the keys and values of this commit</${Waiting}>` : null}
      <p class="is-dim">Enter opens the first place, or else filters the commits. To filter them: <code>message:paid</code> <code>key:plan</code> <code>info:outcome=error</code> <code>since:yesterday</code> <code>until:2026-11-20</code> <code>author:ed25519:09af</code></p>
      ${data && sought && !loading && html`<${Found} key=${sought} data=${data} sought=${sought} onChoose=${leave} />`}
    </div>`}
  </form>`;
}
