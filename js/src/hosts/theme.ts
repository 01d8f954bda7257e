// The theme of whatever notebook this is in: JupyterLab's attribute, VS Code's and marimo's classes, else the system's.

export function notebookTheme(element: HTMLElement): "light" | "dark" | undefined {
  const { body, documentElement } = document;
  if (body.dataset.jpThemeLight !== undefined) return body.dataset.jpThemeLight === "false" ? "dark" : "light";
  const kind = body.dataset.vscodeThemeKind;
  if (kind) return kind.includes("dark") || kind === "vscode-high-contrast" ? "dark" : "light";
  for (const part of [element.closest(".dark, .dark-theme"), body, documentElement]) {
    if (!part) continue;
    if (part.matches(".dark, .dark-theme, [data-theme='dark'], [theme='dark']")) return "dark";
    if (part.matches(".light, .light-theme, [data-theme='light']")) return "light";
  }
  return undefined;
}

export function watchTheme(element: HTMLElement, changed: (theme: "light" | "dark") => void) {
  const observer = new MutationObserver(() => {
    const theme = notebookTheme(element);
    if (theme) changed(theme);
  });
  for (const part of [document.body, document.documentElement]) observer.observe(part, { attributes: true });
  return { now: () => notebookTheme(element), stop: () => observer.disconnect() };
}
