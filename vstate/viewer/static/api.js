// The answers of the server, and texts that are safe to show.
import { isGiven } from "./place.js";
import { useEffect, useState } from "./preact.js";

const ID = /^[0-9a-f]{64}$/;
const MOST_KEPT = 400;
const kept = new Map();

/** Why a request failed. `status` is that of HTTP, 0 if no answer came. */
class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function requestOf(path, params = {}) {
  const given = Object.entries(params).filter(([name, value]) => isGiven(name, value));
  const query = new URLSearchParams(given.map(([name, value]) => [name, value === true ? "1" : String(value)]).sort());
  return query.size ? `${path}?${query}` : path;
}

async function answerOf(request, options) {
  if (globalThis.vstateAnswers) {
    const answer = globalThis.vstateAnswers(request);
    if (!answer) throw new ApiError("this file does not hold that part of the history", 404);
    return answer;
  }
  let response;
  try {
    response = await fetch(`api/v1${request}`, { credentials: "same-origin", ...options });
  } catch {
    throw new ApiError("the viewer has ended: start vstate view again", 0);
  }
  const text = await response.text();
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    answer = { error: text.trim() || response.statusText };
  }
  if (!response.ok) throw new ApiError(answer.error ?? response.statusText, response.status);
  return answer;
}

/** Whether the answer can never change: all the commits that it is about are named by their ids. */
function isFixed(params) {
  const revs = ["rev", "new", "old", "since", "before"].map((name) => params[name]).filter(Boolean);
  return revs.length > 0 && revs.every((rev) => ID.test(rev));
}

/** The answer to a GET. Raises ApiError. Answers that cannot change are kept. */
export function get(path, params = {}) {
  const request = requestOf(path, params);
  const found = kept.get(request);
  if (found) return found;
  const answer = answerOf(request);
  if (isFixed(params) && path !== "/search") { // a text may name a branch
    kept.set(request, answer);
    answer.catch(() => kept.delete(request));
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  return answer;
}

/** The answer to a POST of a JSON object. Raises ApiError. */
export function post(path, body) {
  return answerOf(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

/** The refs as they were seen last: a text that changes when one of them moves. */
export const seen = { refs: null };

/** `{data, error, of}` of what `load` promises, loaded anew when the name `of` or something in `changes` differs.
 * The answer before stays until then. A name of null loads nothing. */
export function useLoaded(of, load, changes = []) {
  const [state, setState] = useState({ data: null, error: null, of: null });
  useEffect(() => {
    if (!of) return undefined;
    let isWanted = true;
    load().then(
      (data) => isWanted && setState({ data, error: null, of }),
      (error) => isWanted && setState({ data: null, error, of }),
    );
    return () => { isWanted = false; };
  }, [of, ...changes]);
  return [state, setState];
}

/** `{data, error, loading}` of a GET, asked anew when a ref has moved. `data` stays until the next answer is here.
 * A null path asks nothing. */
export function useAnswer(path, params = {}) {
  const request = path && requestOf(path, params);
  const [{ data, error, of }] = useLoaded(request, () => get(path, params), [seen.refs]);
  if (!request) return { data: null, error: null, loading: false };
  return { data, error: of === request ? error : null, loading: of !== request };
}

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** A stored text for people: characters that hide or turn other text are written out. */
export function shown(text) {
  return String(text ?? "").replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A key, or a part of one, for people: in quotes where white space would not be seen. */
export function named(key) {
  return /^$|^\s|\s$|\s\s|[^\S ]/.test(key) ? shown(JSON.stringify(key)) : shown(key);
}

/** The name of a type without its module. */
export function typeText(type) {
  return shown(type.split(".").pop());
}

/** The JSON in a part of the address, or something else if somebody has changed it to no JSON. */
export function parsed(text, otherwise) {
  try {
    return JSON.parse(text || "null") ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** A set with an item more, or without it if it has the item. */
export function toggled(set, item) {
  const next = new Set(set);
  if (!next.delete(item)) next.add(item);
  return next;
}

/** The name of a branch for people: session 17 for session%2017. */
export function nameOf(ref) {
  try {
    return shown(decodeURIComponent(ref));
  } catch {
    return shown(ref);
  }
}

/** The revisions that name the branches, the tags and the remote branches; in full where two have one name. */
export function revisionsOf(refs) {
  const kinds = [["heads", refs?.branches], ["tags", refs?.tags], ["remotes", refs?.remotes]].map(([kind, found = []]) => [kind, found.map((each) => each.name)]);
  const names = kinds.flatMap(([, found]) => found);
  const isShared = (name) => names.indexOf(name) !== names.lastIndexOf(name);
  return kinds.map(([kind, found]) => found.map((name) => (isShared(name) ? `${kind}/${name}` : name)));
}

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function sizeText(bytes) {
  if (bytes === null || bytes === undefined) return "";
  let power = 0;
  let size = bytes;
  while (size >= 999.95 && power < UNITS.length - 1) {
    size /= 1000;
    power += 1;
  }
  return power ? `${size.toFixed(1)} ${UNITS[power]}` : `${size} B`;
}

/** A number of seconds for people: 40 s, 12 min, 3 h, 5 d. */
export function spanText(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

/** A time in the zone of this machine: 2026-11-23 18:05:12. */
export function timeText(iso) {
  const time = new Date(iso);
  return Number.isNaN(time.getTime()) ? shown(iso) : time.toLocaleString("sv"); // as ISO 8601, in Swedish
}

export function grouped(number) {
  return number.toLocaleString("en");
}

export function counted(count, noun, many = `${noun}s`) {
  return `${grouped(count)} ${count === 1 ? noun : many}`;
}
