// A picture that is zoomed by buttons, keys and Ctrl+wheel, and moved by dragging or scrolling.

import { h } from "./dom.js";

const STEP = 1.25, LEAST = 0.1, MOST = 3;
const DRAG_PX = 4;

export class Zoom {
	/** `box` scrolls `svg`, which is drawn `width` by `height`. */
	constructor(box, svg, width, height) {
		Object.assign(this, { box, svg, width, height, scale: 1, isOwn: false });
		this.word = h("span.tabular.muted", { role: "status", "aria-label": "Zoom" });
		const button = (text, label, act) => h("button.quiet", { "aria-label": label, title: label, onclick: act }, text);
		this.tools = h("span.row.zoom",
			button("−", "Zoom out", () => this.by(1 / STEP)), this.word, button("+", "Zoom in", () => this.by(STEP)),
			button("Fit", "Fit all steps", () => this.fit()), button("1:1", "1:1, as drawn", () => this.to(1)));
		box.addEventListener("keydown", (event) => this.key(event));
		box.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
		box.addEventListener("pointerdown", (event) => this.drag(event));
		new ResizeObserver(() => this.isOwn || this.begin()).observe(box);
	}

	/** As large as it fits in width, at most as drawn: what is below is scrolled to. */
	begin() {
		if (!this.box.clientWidth) return;
		this.set(Math.min(1, (this.box.clientWidth - 2) / this.width));
	}

	fit() {
		this.isOwn = true;
		const style = getComputedStyle(this.box), most = Number.parseFloat(style.maxHeight) || this.box.clientHeight;
		this.set(Math.min((this.box.clientWidth - 2) / this.width, (most - 2) / this.height, 1.5));
	}

	by(factor) {
		this.to(this.scale * factor);
	}

	/** Another scale; what is in the middle, or at `x`, `y`, stays there. */
	to(scale, x = this.box.clientWidth / 2, y = this.box.clientHeight / 2) {
		this.isOwn = true;
		const before = this.scale, { scrollLeft, scrollTop } = this.box;
		this.set(scale);
		const factor = this.scale / before;
		this.box.scrollTo((scrollLeft + x) * factor - x, (scrollTop + y) * factor - y);
	}

	set(scale) {
		this.scale = Math.min(MOST, Math.max(LEAST, scale));
		this.svg.style.width = `${this.width * this.scale}px`;
		this.svg.style.height = `${this.height * this.scale}px`;
		this.word.textContent = `${Math.round(this.scale * 100)} %`;
	}

	key(event) {
		if (event.ctrlKey || event.metaKey || event.altKey) return;
		const act = { "+": () => this.by(STEP), "=": () => this.by(STEP), "-": () => this.by(1 / STEP), 0: () => this.fit(), 1: () => this.to(1) }[event.key];
		if (!act) return;
		event.preventDefault();
		act();
	}

	wheel(event) {
		if (!event.ctrlKey && !event.metaKey) return; // else it scrolls
		event.preventDefault();
		const { left, top } = this.box.getBoundingClientRect();
		this.to(this.scale * STEP ** (-event.deltaY / 100), event.clientX - left, event.clientY - top);
	}

	/** With a mouse; fingers scroll by themselves. A drag that began on a step does not open it. */
	drag(event) {
		if (event.pointerType !== "mouse" || event.button !== 0) return;
		const { scrollLeft, scrollTop } = this.box, stop = new AbortController();
		let hasMoved = false;
		const move = ({ clientX, clientY }) => {
			const [x, y] = [clientX - event.clientX, clientY - event.clientY];
			if (!hasMoved && Math.hypot(x, y) < DRAG_PX) return;
			hasMoved = true;
			this.box.classList.add("is-dragged");
			this.box.scrollTo(scrollLeft - x, scrollTop - y);
		};
		const end = () => {
			stop.abort();
			this.box.classList.remove("is-dragged");
			if (!hasMoved) return;
			const swallow = (click) => click.stopPropagation();
			this.box.addEventListener("click", swallow, { capture: true, once: true });
			setTimeout(() => this.box.removeEventListener("click", swallow, { capture: true }));
		};
		document.addEventListener("pointermove", move, { signal: stop.signal });
		document.addEventListener("pointerup", end, { signal: stop.signal });
		document.addEventListener("pointercancel", end, { signal: stop.signal });
	}
}
