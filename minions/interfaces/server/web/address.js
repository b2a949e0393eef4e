// The address of a view: its path and its query stand behind the hash.

/** Go to a place of the page: `/runs/…?step=…`. `replace`: the way back leads past the present one. */
export function go(place, { replace = false } = {}) {
	if (!replace) {
		location.hash = place;
		return;
	}
	history.replaceState(null, "", `#${place}`);
	window.dispatchEvent(new Event("hashchange"));
}

/** Where the page is: the parts of the path, decoded, and the query. */
export function here() {
	const [path, query] = location.hash.replace(/^#/, "").split("?");
	return { path: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query ?? "") };
}

function decoded(text) {
	try {
		return decodeURIComponent(text);
	} catch {
		return text;
	}
}
