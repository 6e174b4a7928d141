// The health of the store: where the bytes are, what gc would free, what fsck finds, who signed.
import { counted, grouped, shown, sizeText, timeText, useAnswer } from "./api.js";
import { go, hrefOf } from "./place.js";
import { html, useEffect, useRef, useState } from "./preact.js";
import { Chip, Failure } from "./widgets.js";

/** Long work, which tells of its progress: gc on trial, fsck. */
function Job({ name, label, note }) {
  const [state, setState] = useState({});
  const source = useRef(null);
  useEffect(() => () => source.current?.close(), []);
  const end = (found) => {
    source.current.close();
    source.current = null;
    setState(found);
  };
  const start = () => {
    setState({ progress: { step: "starting", count: 0 } });
    source.current = new EventSource(`api/v1/${name}`);
    const on = (kind, take) => source.current.addEventListener(kind, (event) => take(JSON.parse(event.data)));
    on("progress", (progress) => setState({ progress }));
    on("result", (result) => end({ result }));
    on("failed", ({ error }) => end({ error }));
    source.current.onerror = () => source.current && end({ error: "the viewer has ended" });
  };
  const { progress, result, error } = state;
  return html`<section class="job">
    <p><${Chip} disabled=${Boolean(progress)} onClick=${start}>${label}</${Chip}> <span class="is-dim">${note}</span></p>
    <div role="status">
      ${progress && html`<p><progress aria-label=${label}></progress> ${shown(progress.step)}: ${grouped(progress.count)} <${Chip} onClick=${() => end({})}>stop</${Chip}></p>`}
      ${result && html`<p class=${result.ok === false ? "is-removed" : ""}>${shown(result.text)}</p>`}
      ${result?.damage?.length ? html`<ul class="plain">${[...result.damage, ...result.lost].map((line) => html`<li class="mono is-removed">${shown(line)}</li>`)}</ul>` : null}
      ${error && html`<p class="error">${shown(error)}</p>`}
    </div>
  </section>`;
}

function Sizes({ rows, total, label }) {
  const most = Math.max(...rows.map((row) => row.bytes), 1);
  return html`<table class="sizes"><thead><tr><th scope="col">${label}</th><th scope="col">size</th><th scope="col"><span class="sr">share</span></th></tr></thead><tbody>${rows.map((row) => html`<tr>
    <td>${row.href ? html`<a href=${row.href}>${shown(row.name)}</a>` : shown(row.name)}${row.note && html` <span class="is-dim">${row.note}</span>`}</td>
    <td class="number">${sizeText(row.bytes)}</td>
    <td class="share"><span style=${{ width: `${(row.bytes / most) * 100}%` }}></span></td></tr>`)}</tbody></table>
  ${total}`;
}

const keysOf = ({ keys, measured }) => counted(keys, "key") + (measured < keys ? ` (the first ${measured} measured)` : "");

export function Health() {
  const { data, error } = useAnswer("/health");
  return html`<div class="page">
    <div class="page-head"><h2>Health of the store</h2><${Chip} onClick=${() => go({ page: "" })}>close</${Chip}></div>
    <${Failure} error=${error} />
    <div class="jobs"><${Job} name="gc" label="What would gc free?" note="removes nothing" /><${Job} name="fsck" label="Check every object" note="reads the whole store, and repairs nothing" /></div>
    ${!data && !error && html`<p class="empty" role="status">Adding up the sizes …</p>`}
    ${data && html`
      <p class="facts"><span>${keysOf(data)} at HEAD</span><span>${sizeText(data.bytes)}, before compression</span><span>${counted(data.branch_count, "branch", "branches")}</span>${data.damaged ? html`<span class="is-bad">${counted(data.damaged, "branch", "branches")} cannot be read: check every object</span>` : null}</p>
      <div class="columns">
        <section><h3>Largest keys</h3><${Sizes} label="key" rows=${data.largest.slice(0, 20).map((row) => ({ name: row.key, bytes: row.bytes, href: hrefOf({ key: row.key, page: "", path: "", tab: "" }) }))} /></section>
        <section><h3>Branches</h3><${Sizes} label="branch" rows=${data.branches.slice(0, 20).map((row) => ({ name: row.name, bytes: row.bytes, note: `${keysOf(row)}, ${timeText(row.time)}`, href: hrefOf({ branch: row.name, page: "", rev: "", pane: "commits" }) }))}
          total=${data.left_out ? html`<p class="is-dim">${counted(data.left_out, "more branch", "more branches")}, too long to add up</p>` : null} /></section>
        <section><h3>Signatures</h3><p class="is-dim">newest commits: ${grouped(data.signatures.commits)}</p><table class="sizes"><tbody>${data.signatures.by_key.map((row) => html`<tr>
          <td class=${row.key === "invalid" ? "is-removed" : row.key === "none" ? "is-dim" : "mono"}>${row.key === "none" ? "not signed" : shown(row.key)}</td><td class="number">${grouped(row.commits)}</td></tr>`)}</tbody></table></section>
      </div>`}
  </div>`;
}
