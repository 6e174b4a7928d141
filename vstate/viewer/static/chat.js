// A list of messages as a conversation, each call of a tool beside its result.
import { get, grouped, shown } from "./api.js";
import { hrefOf } from "./place.js";
import { html, useEffect, useRef, useState } from "./preact.js";
import { Chip, Failure } from "./widgets.js";

const SOME = 100;
const LONG = 1500; // characters
const New = html`<span class="new">new</span>`;

function LongText({ text }) {
  const [isWhole, setWhole] = useState(false);
  const isCut = text.length > LONG && !isWhole;
  return html`<div class="message-text">${shown(isCut ? text.slice(0, LONG) : text)}${isCut
    && html` <${Chip} onClick=${() => setWhole(true)}>… ${grouped(text.length - LONG)} more</${Chip}>`}</div>`;
}

function Call({ call }) {
  return html`<div class="call">
    <div class="call-line"><b>${shown(call.name)}</b><span class="mono">(${shown(call.arguments)})</span></div>
    ${call.result === null ? html`<p class="is-dim">no result yet</p>` : html`<div class="call-result"><span class="is-dim" aria-hidden="true">→</span><${LongText} text=${call.result} />${call.new ? New : null}</div>`}
  </div>`;
}

function Message({ message, path }) {
  const role = ["user", "assistant", "system", "tool"].includes(message.role) ? message.role : "other";
  return html`<li class=${`message is-${role} ${message.new ? "is-new" : ""}`} id=${`message-${message.place}`}>
    <div class="message-head"><b>${shown(message.role)}</b>${message.name && html` <span>${shown(message.name)}</span>`}
      ${message.new ? New : null}
      <a class="mono is-dim" href=${hrefOf({ path: `${path}[${message.place}]` })} title="this message as it is stored">[${message.place}]</a></div>
    ${message.text && html`<${LongText} text=${message.text} />`}
    ${message.calls.map((call) => html`<${Call} key=${call.id} call=${call} />`)}
  </li>`;
}

export function Chat({ answer, rev, name, since }) {
  const { count } = answer.view;
  const [pages, setPages] = useState(() => new Map([[0, answer.view]]));
  const [from, setFrom] = useState(Math.max(Math.round(count / SOME) - 1, 0));
  const [error, setError] = useState(null);
  const box = useRef(null);
  useEffect(() => {
    let isWanted = true;
    for (let page = from; page * SOME < count; page += 1) {
      if (pages.has(page)) continue;
      get("/value", { rev, key: name, path: answer.path, since, first: page * SOME, limit: SOME }).then(
        (found) => isWanted && setPages((before) => new Map(before).set(page, found.view)),
        (failed) => isWanted && setError(failed),
      );
    }
    return () => { isWanted = false; };
  }, [from]);
  const messages = [...pages.entries()].filter(([page]) => page >= from).sort(([a], [b]) => a - b).flatMap(([, view]) => view.messages);
  const isNew = (message) => message.new || message.calls.some((call) => call.new);
  const firstNew = messages.find((message) => isNew(message) && !messages.every(isNew));
  const show = () => box.current.querySelector(`#message-${firstNew.place}`)?.scrollIntoView({ block: "center" });
  const isThere = pages.has(Math.floor((count - 1) / SOME));
  useEffect(() => { // to what is new, or to the newest messages where the first ones are left out
    if (!isThere) return;
    if (firstNew) show();
    else if (from > 0) box.current.lastElementChild.lastElementChild?.scrollIntoView({ block: "end" });
  }, [isThere]);
  return html`<div class="chat" ref=${box}>
    ${firstNew && html`<p class="facts"><${Chip} onClick=${show}>go to what is new</${Chip}></p>`}
    ${from > 0 && html`<${Chip} onClick=${() => setFrom(from - 1)}>${grouped(from * SOME)} earlier messages</${Chip}>`}
    <${Failure} error=${error} />
    <ol class="messages">${messages.map((message) => html`<${Message} key=${`${message.place} ${message.role}`} message=${message} path=${answer.path} />`)}</ol>
  </div>`;
}
