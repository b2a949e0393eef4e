// What differs between two texts, by words.

const WORDS = /\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu;
const MOST_EDITS = 600; // words that differ; beyond them all that is not at both ends counts as different

/** Of each text its pieces in order, `[text, isOwn]`: own is what the other one has not. */
export function wordDiff(a, b) {
	const one = a.match(WORDS) ?? [], other = b.match(WORDS) ?? [];
	let head = 0, tail = 0;
	while (head < Math.min(one.length, other.length) && one[head] === other[head]) head += 1;
	while (tail < Math.min(one.length, other.length) - head && one.at(-1 - tail) === other.at(-1 - tail)) tail += 1;
	const middles = [one, other].map((words) => words.slice(head, words.length - tail)), owns = owned(...middles);
	return [one, other].map((words, side) => joined(words, (at) => owns[side][at - head] ?? false));
}

/** For each of both whether the other lacks the word at that place: the fewest in all (Myers, An O(ND) Difference Algorithm, 1986). */
function owned(one, other) {
	const flags = [one.map(() => true), other.map(() => true)], most = Math.min(one.length + other.length, MOST_EDITS), reached = [];
	const ends = new Map([[1, 0]]); // by diagonal, how far of `one`
	for (let edits = 0; edits <= most; edits += 1) {
		for (let diagonal = -edits; diagonal <= edits; diagonal += 2) {
			const isDown = diagonal === -edits || (diagonal !== edits && ends.get(diagonal - 1) < ends.get(diagonal + 1));
			let x = isDown ? ends.get(diagonal + 1) : ends.get(diagonal - 1) + 1, y = x - diagonal;
			while (x < one.length && y < other.length && one[x] === other[y]) [x, y] = [x + 1, y + 1];
			ends.set(diagonal, x);
			if (x >= one.length && y >= other.length) return followed(flags, reached, [x, y]);
		}
		reached.push(new Map(ends));
	}
	return flags;
}

/** The flags without the words that both have, followed from the end. */
function followed(flags, reached, [x, y]) {
	for (let edits = reached.length; edits >= 0; edits -= 1) {
		const ends = reached[edits - 1], diagonal = x - y;
		const isDown = edits > 0 && (diagonal === -edits || (diagonal !== edits && ends.get(diagonal - 1) < ends.get(diagonal + 1)));
		const from = edits ? ends.get(isDown ? diagonal + 1 : diagonal - 1) : 0, start = isDown ? from : from + (edits ? 1 : 0);
		while (x > start) flags[0][x -= 1] = flags[1][y -= 1] = false;
		if (edits) [x, y] = [from, from - (isDown ? diagonal + 1 : diagonal - 1)];
	}
	return flags;
}

/** Neighbours of one kind are one piece; blanks between two own words are own. */
function joined(words, isOwn) {
	const pieces = [];
	words.forEach((word, at) => {
		const own = isOwn(at) || (!word.trim() && at > 0 && isOwn(at - 1) && isOwn(at + 1));
		if (pieces.at(-1)?.[1] === own) pieces.at(-1)[0] += word;
		else pieces.push([word, own]);
	});
	return pieces;
}
