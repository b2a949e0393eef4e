// The HTTP API: requests with the token, streams that are resumed where they were cut.

const KEY = "minions.token";
const BASE = new URL("api/v1", document.baseURI).href;
const QUIET_MS = 45_000; // three heartbeats: then the line is taken for dead

/** What a request was refused with, or that it got no answer (status 0). */
export class ApiError extends Error {
	constructor(status, body) {
		super(body.detail ?? "The server sent no reason.");
		this.status = status;
		this.code = body.code;
		this.title = body.title;
		this.suggestions = body.suggestions ?? [];
		this.faults = body.faults ?? [];
	}
}

export const connection = new EventTarget();
let state = "live";

/** `live`, `reconnecting`, `gone`, or `logged-out`: a proxy wants its login again. */
export const connectionState = () => state;

const isCut = () => state === "gone" || state === "logged-out";

function become(next) {
	if (next === state) return;
	state = next;
	connection.dispatchEvent(new Event("change"));
}

/** The error of a request that got no answer; from then on the page says so. */
export function noAnswer() {
	become("gone");
	return new ApiError(0, { title: "The server does not answer", detail: "It stopped, or the network is down. The page tries again by itself." });
}

function loginEnded() {
	become("logged-out");
	return new ApiError(0, { title: "Your login has ended", code: "login-ended", detail: "The proxy in front of the server wants a new login. Nothing was sent; what runs goes on." });
}

/** Whether a proxy answered in the server's place: it leads to its login, or shows it. The server leads nowhere, and its only pages are files. */
function isLogin(response) {
	if (response.type === "opaqueredirect") return true;
	const isPage = (response.headers.get("content-type") ?? "").startsWith("text/html");
	return isPage && (response.ok ? !response.headers.has("content-disposition") : response.status === 401 || response.status === 403);
}

// --- the token

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
/** An empty one: a proxy adds to each request who sends it. */
export const keepToken = (token) => sessionStorage.setItem(KEY, token);
export const dropToken = () => sessionStorage.removeItem(KEY);

/** `#token=…` in the address is taken, and removed from it. */
export function takeTokenFromAddress() {
	const match = /^#token=([^&]+)(?:&(.*))?$/.exec(location.hash);
	if (!match) return;
	keepToken(decodeURIComponent(match[1]));
	history.replaceState(null, "", `${location.pathname}${location.search}#${match[2] ?? "/runs"}`);
}

// --- the server's clock

let least = -Infinity, most = Infinity; // by how many milliseconds the server's clock is before this device's, at least and at most

/** Learn from the `Date` of an answer, which has whole seconds, to a request that lay between these two times of this device. */
function takeTime(date, begun, ended) {
	const at = Date.parse(date), low = at - ended, high = at + 1000 - begun;
	if (Number.isNaN(at)) return;
	[least, most] = low > most || high < least ? [low, high] : [Math.max(least, low), Math.min(most, high)]; // a clock was set: what was known is over
}

/** Now, by the server's clock: what it says is measured with this, as a device's own may be wrong by minutes. */
export const now = () => Date.now() + (least > 0 ? least : most < 0 ? most : 0);

// --- requests

async function ask(method, path, { body, headers, signal } = {}) {
	const token = sessionStorage.getItem(KEY), all = { ...(token ? { Authorization: `Bearer ${token}` } : {}), ...headers };
	if (body !== undefined) all["Content-Type"] = "application/json";
	const begun = Date.now();
	let response;
	try {
		response = await fetch(BASE + path, {
			method, headers: all, signal, cache: "no-store", redirect: "manual",
			body: body === undefined ? undefined : JSON.stringify(body),
		});
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw noAnswer();
	}
	takeTime(response.headers.get("date"), begun, Date.now());
	if (isLogin(response)) throw loginEnded();
	if (response.ok) return response;
	const text = await response.text();
	let problem;
	try {
		problem = JSON.parse(text);
	} catch {
		problem = { title: response.statusText, detail: text.slice(0, 500) || `Status ${response.status}.` };
	}
	if (response.status === 401) {
		dropToken();
		const isTold = problem.code === "proxy-refused" || problem.code === "token-expired";
		connection.dispatchEvent(new CustomEvent("refused", { detail: isTold ? problem.detail : token ? "The server did not take that token." : "" }));
	}
	throw new ApiError(response.status, problem);
}

async function value(method, path, options) {
	const response = await ask(method, path, options);
	if (isCut()) become("live");
	if (response.status === 204) return null;
	const kind = response.headers.get("content-type") ?? "";
	return kind.includes("json") ? response.json() : response.text();
}

export const get = (path, options) => value("GET", path, options);
export const post = (path, body = {}, options = {}) => value("POST", path, { ...options, body });

/** Begin something that is told as a stream which is followed elsewhere: only whether it began. */
export async function begin(path, body = {}) {
	const response = await ask("POST", path, { body });
	response.body?.cancel().catch(() => {});
}

/** Store what the server sends as a file; it is never shown as a page of this origin. */
export async function download(path, name) {
	const response = await ask("GET", path), url = URL.createObjectURL(await response.blob());
	const link = document.createElement("a");
	link.href = url;
	link.download = name;
	link.click();
	setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

export const enc = encodeURIComponent;

// --- streams

/** Splits a stream of server-sent events; `take` gets {id, event, data}. */
export class SseParser {
	constructor(take) {
		this.take = take;
		this.rest = "";
		this.reset();
	}

	reset() {
		this.event = "";
		this.data = [];
		this.id = null;
	}

	push(text) {
		this.rest += text;
		// A lone \r at the end may be the first half of \r\n.
		const held = this.rest.endsWith("\r") ? 1 : 0;
		const lines = this.rest.slice(0, this.rest.length - held).split(/\r\n|\n|\r/);
		this.rest = lines.pop() + (held ? "\r" : "");
		for (const line of lines) this.line(line);
	}

	line(line) {
		if (line === "") {
			if (this.data.length) this.take({ id: this.id, event: this.event || "message", data: this.data.join("\n") });
			this.reset();
			return;
		}
		const colon = line.indexOf(":");
		if (colon === 0) return;
		const name = colon < 0 ? line : line.slice(0, colon);
		const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
		if (name === "data") this.data.push(text);
		else if (name === "event") this.event = text;
		else if (name === "id") this.id = text;
	}
}

/**
 * Follow a stream until `signal` aborts or `isOver()` is true after it ended.
 * Stored events come in order and once: one whose position was seen is passed over.
 * `onGap` is called when pieces that are not stored may have been missed.
 */
export async function follow(path, { signal, after = 0, onEvent, onGap, isOver, onError }) {
	let last = after, waits = 0;
	signal.addEventListener("abort", () => state === "reconnecting" && become("live"), { once: true });
	while (!signal.aborted) {
		const line = new AbortController();
		const end = () => line.abort();
		signal.addEventListener("abort", end, { once: true });
		let watch = setTimeout(end, QUIET_MS);
		try {
			const headers = { Accept: "text/event-stream" };
			if (last > 0) headers["Last-Event-ID"] = String(last);
			const response = await ask("GET", path, { headers, signal: line.signal });
			become("live");
			const parser = new SseParser(({ data }) => {
				const event = JSON.parse(data);
				if (event.type === "error") return; // the stream ends with it; the next request is refused with the reason
				if (event.position !== undefined) {
					if (event.position <= last) return;
					last = event.position;
				}
				waits = 0;
				onEvent(event);
			});
			// 204: the run has ended, and nothing is missing.
			const reader = response.body?.getReader(), decoder = new TextDecoder();
			while (reader) {
				const { done, value: bytes } = await reader.read();
				if (done) break;
				clearTimeout(watch);
				watch = setTimeout(end, QUIET_MS);
				parser.push(decoder.decode(bytes, { stream: true }));
			}
		} catch (error) {
			if (signal.aborted) return;
			if (error.status >= 400 && error.status < 500 && error.status !== 429) {
				onError?.(error);
				return;
			}
		} finally {
			clearTimeout(watch);
			signal.removeEventListener("abort", end);
		}
		if (signal.aborted || isOver?.()) return;
		onGap?.();
		if (state === "live" || (waits > 0 && !isCut())) become("reconnecting");
		await pause(Math.min(10_000, 300 * 2 ** waits) * (0.8 + 0.4 * Math.random()), signal);
		waits += 1;
	}
}

function pause(ms, signal) {
	return new Promise((resolve) => {
		const timer = setTimeout(resolve, ms);
		signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
	});
}

/** Call when lists of that kind (`runs`, `approvals`) may have changed; a page that is not seen waits. */
export function onChange(kind, signal, act) {
	let isStale = false, isBusy = false;
	const refresh = async () => {
		isStale = true;
		if (document.hidden || isBusy) return;
		isBusy = true;
		try {
			while (isStale && !signal.aborted) {
				isStale = false;
				await act();
			}
		} catch {
			// the next change comes, or the line comes back; its state is shown
		} finally {
			isBusy = false;
		}
	};
	connection.addEventListener(kind, refresh, { signal });
	document.addEventListener("visibilitychange", () => isStale && refresh(), { signal });
}

/**
 * The one stream of changes; `onTotal` gets the number of pending decisions. A page that is not seen has
 * none: browsers open six connections to a server, for all tabs together.
 */
export function followChanges(signal, onTotal) {
	const tell = (kind) => connection.dispatchEvent(new Event(kind));
	let line = null, hasGap = false;
	const take = ({ type, total }) => {
		if (type === "approvals_changed") onTotal(total);
		const kinds = hasGap ? ["runs", "approvals"] : [type.replace("_changed", "")];
		hasGap = false;
		kinds.forEach(tell);
	};
	const close = () => {
		line?.abort();
		line = null;
		hasGap = true;
	};
	const open = () => {
		if (document.hidden || line || signal.aborted) return;
		line = new AbortController();
		follow("/changes", { signal: line.signal, onEvent: take, onGap: () => (hasGap = true) });
	};
	document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()), { signal });
	signal.addEventListener("abort", close, { once: true });
	open();
}

/** Call again and again while the page is seen; failures do not end it. */
export async function poll(every, signal, act) {
	while (!signal.aborted) {
		await pause(every, signal);
		if (signal.aborted || document.hidden) continue;
		try {
			await act();
		} catch {
			// the next time may be better; the state of the connection is shown
		}
	}
}
