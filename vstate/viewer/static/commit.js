// The commit that is shown: message, info, events and signature.
import { counted, shown, timeText, useAnswer } from "./api.js";
import { Ref } from "./commits.js";
import { hrefOf } from "./place.js";
import { html } from "./preact.js";
import { Failure } from "./widgets.js";

const SIGNATURES = {
  valid: ["✓ signed by", "is-good"],
  invalid: ["✗ the signature is not valid:", "is-bad"],
  unchecked: ["signed, not checked here:", ""],
};

/** Plain data of a commit's info or of an event, in one line. */
function dataText(value) {
  return typeof value === "string" ? shown(value) : shown(JSON.stringify(value));
}

function Signature({ signature }) {
  if (signature.status === "none") return null;
  const [text, name] = SIGNATURES[signature.status];
  return html`<p class=${`signature ${name}`}>${text} <span class="mono">${shown(signature.key)}</span></p>`;
}

function Events({ events }) {
  if (!events.length) return null;
  return html`<details class="events"><summary>${counted(events.length, "event")}</summary>
    <table><tbody>${events.slice(0, 500).map((event) => html`<tr>
      <td class="mono is-dim">${timeText(event.time).slice(11)}</td>
      <td><b>${shown(event.kind)}</b> <span class="is-dim">${shown(event.namespace)}</span></td>
      <td class="mono">${Object.entries(event.data ?? {}).map(([name, value]) => html`<span class="datum">${shown(name)}=${dataText(value).slice(0, 500)} </span>`)}</td>
    </tr>`)}</tbody></table>
    ${events.length > 500 && html`<p class="is-dim">and ${events.length - 500} more</p>`}
  </details>`;
}

/** The head of the content: the commit `rev`. `children` are the things to do with it. */
export function CommitHead({ rev, children }) {
  const { data, error } = useAnswer(rev && `/commits/${rev}`);
  if (error) return html`<header class="commit-head"><${Failure} error=${error} /></header>`;
  if (!data) return html`<header class="commit-head"></header>`;
  const [first, ...rest] = shown(data.message).split("\n");
  const info = Object.entries(data.info);
  return html`<header class="commit-head">
    <div class="commit-title">
      <h2>${first || "(no message)"}</h2>
      ${data.refs.map((found) => html`<${Ref} key=${found.name} found=${found} />`)}
    </div>
    ${rest.join("\n").trim() && html`<pre class="commit-body">${rest.join("\n").trim()}</pre>`}
    <p class="commit-facts">
      <span class="mono" title=${data.id}>${data.short}</span>
      <span>${timeText(data.time)}</span>
      ${data.parents.map((parent, at) => html`<a class="mono" href=${hrefOf({ rev: parent })} title="go to this parent">${data.parents.length > 1 ? `parent ${at + 1}: ` : "parent: "}${parent.slice(0, 10)}</a>`)}
      ${data.shallow && html`<span>commits behind it were removed</span>`}
      ${info.slice(0, 30).map(([name, value]) => html`<span class="datum"><span class="is-dim">${shown(name)}=</span>${dataText(value).slice(0, 200)}</span>`)}
    </p>
    <${Signature} signature=${data.signature} />
    <${Events} events=${data.events} />
    ${children}
  </header>`;
}
