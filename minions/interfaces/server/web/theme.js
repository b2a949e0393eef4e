// Light, dark, or as the system has it; kept in this browser. Loaded before the page is drawn.
(() => {
	const KEY = "minions.theme", NAMES = ["auto", "light", "dark"], root = document.documentElement;
	const system = matchMedia("(prefers-color-scheme: dark)"), events = new EventTarget();
	const told = () => events.dispatchEvent(new Event("change"));
	const kept = () => {
		try {
			return localStorage.getItem(KEY);
		} catch {
			return null; // this browser keeps nothing
		}
	};
	const theme = {
		names: NAMES,
		events,
		get name() {
			return root.dataset.theme ?? "auto";
		},
		get isDark() {
			return theme.name === "auto" ? system.matches : theme.name === "dark";
		},
		use(name) {
			if (name === "light" || name === "dark") root.dataset.theme = name;
			else delete root.dataset.theme;
			told();
		},
		keep(name) {
			theme.use(name);
			try {
				localStorage.setItem(KEY, name);
			} catch {
				// it holds as long as the page is open
			}
		},
	};
	theme.use(kept());
	system.addEventListener("change", told);
	addEventListener("storage", (event) => event.key === KEY && theme.use(event.newValue));
	window.minionsTheme = theme;
})();
