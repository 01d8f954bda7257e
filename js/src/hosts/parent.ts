// What TensorBoard has no message for: its dark mode and its address bar. Same origin, but every look may throw.

const NAME = "p.cockpit.state";

export function parentTheme(): "light" | "dark" | undefined {
  try {
    return window.parent.document.body.classList.contains("dark-mode") ? "dark" : "light";
  } catch {
    return undefined;
  }
}

/** The hash is `#cockpit&p.cockpit.state=...`; TensorBoard hands it to plugins only after a later change. */
export function readAddress(): string | null {
  try {
    const hash = window.parent.location.hash.slice(1);
    for (const part of hash.split("&")) {
      const [key, value] = part.split("=");
      if (decodeURIComponent(key) === NAME) return decodeURIComponent(value ?? "");
    }
  } catch {
    // another origin, or a hash that is no encoding
  }
  return null;
}

export function writeAddress(text: string): void {
  try {
    const { location, history } = window.parent;
    const parts = location.hash
      .slice(1)
      .split("&")
      .filter((part) => part && !part.startsWith(`${NAME}=`));
    if (parts.length && parts[0] !== "cockpit") return; // another tab is shown: its address is not ours
    if (!parts.length) parts.push("cockpit");
    if (text) parts.push(`${NAME}=${encodeURIComponent(text)}`);
    const hash = `#${parts.join("&")}`;
    if (hash !== location.hash) history.replaceState(history.state, "", location.pathname + location.search + hash);
  } catch {
    // another origin
  }
}

export function watchParent(on: { theme(theme: "light" | "dark"): void; address(text: string): void }): () => void {
  const undo: (() => void)[] = [];
  try {
    const outer = window.parent;
    const observer = new MutationObserver(() => {
      const theme = parentTheme();
      if (theme) on.theme(theme);
    });
    observer.observe(outer.document.body, { attributes: true, attributeFilter: ["class"] });
    undo.push(() => observer.disconnect());
    const changed = () => {
      const text = readAddress();
      if (text !== null) on.address(text);
    };
    outer.addEventListener("hashchange", changed);
    undo.push(() => outer.removeEventListener("hashchange", changed));
  } catch {
    // another origin: the system's theme is followed
  }
  return () => {
    for (const act of undo) act();
  };
}
