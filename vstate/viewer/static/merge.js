// A merge on trial: base, ours and theirs of each conflict, and the result of a policy before it is made.
import { counted, get, named, parsed, requestOf, revisionsOf, shown, useLoaded } from "./api.js";
import { Changes, Preview } from "./actions.js";
import { go, hrefOf } from "./place.js";
import { html, useState } from "./preact.js";
import { Leaf } from "./value.js";
import { Chip, Failure } from "./widgets.js";

const SIDES = ["base", "ours", "theirs", "result"];

function Conflict({ conflict, choice, compare, onChoose }) {
  return html`<section class="conflict">
    <h3>${named(conflict.key)} <span class=${conflict.reason ? "is-removed" : "is-dim"}>${conflict.reason ? shown(conflict.reason) : `resolved by ${shown(conflict.policy)}`}</span></h3>
    <dl class="merge-sides">${SIDES.filter((name) => name !== "result" || conflict.result).map((name) => html`<div class=${`merge-side is-${name}`}>
      <dt>${name}</dt><dd class="mono">${conflict[name] ? html`<${Leaf} part=${conflict[name]} />` : html`<i class="is-dim">absent</i>`}</dd></div>`)}</dl>
    <div class="choices">${["ours", "theirs"].map((side) => html`<${Chip} aria-pressed=${choice === side} onClick=${() => onChoose(choice === side ? null : side)}>take ${side}</${Chip}>`)}
      <a href=${compare} title="To write a third text, edit theirs: the edit is a branch. Merge that branch, and take theirs.">compare, or edit theirs</a></div>
  </section>`;
}

/** The sides that were chosen for keys, as the address has them. */
function choicesOf(place) {
  return Object.fromEntries(Object.entries(parsed(place.choices, {})).filter(([, side]) => side === "ours" || side === "theirs"));
}

export function MergeTry({ place, refs, store, state }) {
  const branches = (refs?.branches ?? []).map((found) => found.name);
  const others = revisionsOf(refs).flat();
  const ours = place.ours ?? (place.branch && branches.includes(place.branch) ? place.branch : store?.head.branch) ?? "";
  const theirs = place.theirs ?? others.find((name) => ![ours, `heads/${ours}`].includes(name)) ?? "";
  const policy = place.policy ?? "";
  const choices = choicesOf(place);
  const choose = (next) => go({ choices: Object.keys(next).length ? JSON.stringify(next) : "" });
  const [again, setAgain] = useState(0);
  const isPair = ours && theirs && ours !== theirs;
  const pair = `${ours}\n${theirs}`;
  const taken = Object.entries(choices).map(([key, side]) => `&take_${side}=${encodeURIComponent(key)}`).join("");
  const request = requestOf("/merge", { ours, theirs, policy }) + taken;
  const [answer] = useLoaded(isPair ? request : null, async () => ({ ...await get(request), pair }), [state, again]);
  const { data, error } = isPair && (answer.data?.pair === pair || answer.of === request) ? answer : {};
  const select = (label, value, names, name) => html`<label>${label} <select value=${value} onChange=${(event) => go({ [name]: event.target.value, choices: "" }, { replace: true })}>
    ${names.includes(value) ? null : html`<option value=${value}>${shown(value)}</option>`}${names.map((each) => html`<option value=${each}>${shown(each)}</option>`)}</select></label>`;
  const strategies = { "up-to-date": "There is nothing to merge.", "fast-forward": "The branch only moves forward: no conflict is possible.", merge: "The merge has no open conflict.", conflict: "Some keys are in conflict: choose a policy, or a side for each." };
  const isMade = store?.write && answer.of === request && data?.changes && data.strategy !== "up-to-date";
  return html`<div class="page">
    <div class="page-head"><h2>Merge on trial</h2><${Chip} onClick=${() => go({ page: "" })}>close</${Chip}></div>
    <p class="is-dim">Nothing is changed${store?.write ? " until you say so" : ""}.</p>
    <form class="merge-form" onSubmit=${(event) => event.preventDefault()}>
      ${select("into", ours, branches, "ours")} ${select("merge", theirs, others, "theirs")}
      <label>policy <select value=${policy} onChange=${(event) => go({ policy: event.target.value }, { replace: true })}><option value="">those of the branch</option>
        ${(data?.policies ?? [policy]).filter(Boolean).map((name) => html`<option key=${name} value=${name} selected=${name === policy}>${name}</option>`)}</select></label>
    </form>
    <${Failure} error=${error} />
    ${!isPair && html`<p class="empty">Choose two branches.</p>`}
    ${data && html`<div aria-live="polite">
      <p class=${data.strategy === "conflict" ? "is-removed" : "is-good"}>${strategies[data.strategy]}</p>
      <p class="facts"><span>base <span class="mono">${data.base?.slice(0, 10) ?? "none"}</span></span><span>ours <span class="mono">${data.ours.slice(0, 10)}</span></span><span>theirs <span class="mono">${data.theirs.slice(0, 10)}</span></span></p>
      ${data.conflicts.map((conflict) => html`<${Conflict} key=${conflict.key} conflict=${conflict} choice=${choices[conflict.key]}
        compare=${hrefOf({ page: "", ours, rev: data.theirs, against: data.ours, key: conflict.key, tab: "diff", beside: "1" })}
        onChoose=${(side) => { const { [conflict.key]: _, ...others } = choices; choose(side ? { ...others, [conflict.key]: side } : others); }} />`)}
      ${data.more ? html`<p class="is-dim">and ${counted(data.more, "more conflict")}</p>` : null}
      ${data.changes?.changes.length ? html`<h3>What the branch would get</h3>${isMade ? null : html`<${Changes} page=${data.changes} />`}` : null}
      ${isMade && html`<${Preview} path="/merge" body=${{ branch: ours, rev: data.theirs, name: theirs, policy, choices, seen: data.ours }} label="Merge" onDone=${() => { choose({}); setAgain(again + 1); }} />`}
    </div>`}
  </div>`;
}
