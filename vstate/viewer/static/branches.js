// The branches, newest first.
import { counted, revisionsOf, shown, timeText, useAnswer } from "./api.js";
import { hrefOf } from "./place.js";
import { html, useState } from "./preact.js";
import { Failure } from "./widgets.js";

/** The place of a branch. */
export const ofBranch = (branch) => ({ branch, page: "", all: "", rev: "", open: "", key: null, path: "", tab: "", pane: "commits" });

/** A list to choose a branch from, a tag or a branch of a remote. */
export function Branches({ refs }) {
  const [text, setText] = useState("");
  const { data, error } = useAnswer("/branches", { text });
  const others = revisionsOf(refs).slice(1).flat().filter((name) => name.includes(text));
  return html`<div class="page"><h2>${data ? shown(data.summary) : "Branches"}</h2>
    <input type="search" aria-label="Find a branch" placeholder="find a branch" value=${text} onInput=${(event) => setText(event.target.value)} />
    <${Failure} error=${error} />
    <table class="versions branches"><tbody>${data?.rows.filter((row) => row.title.includes(text) || !globalThis.vstateAnswers).map((row) => html`<tr key=${row.rev}><td><a href=${hrefOf(ofBranch(row.rev))}>${shown(row.title)}</a></td>
      <td class="number">${row.commits ? counted(row.commits, "commit") : ""}${row.all ? "" : " …"}</td><td>${timeText(row.time)}</td><td class="is-dim">${shown(row.message)}</td></tr>`)}</tbody></table>
    ${data?.more ? html`<p class="is-dim">${counted(data.more, "more branch", "more branches")}: find one by its name.</p>` : null}
    ${others.length ? html`<h3>Tags and remote branches</h3><p>${others.slice(0, 100).map((name) => html`<a href=${hrefOf(ofBranch(name))}>${shown(name)}</a> `)}</p>` : null}
  </div>`;
}
