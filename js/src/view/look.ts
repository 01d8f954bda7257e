// Light or dark: what the user chose, else what the host shows, else what the system prefers. Paper is light.
import { dark, light, type Theme, themeVariables } from "../draw/theme.ts";

type Name = "light" | "dark";

export class Look {
  printing = false;
  private readonly media = globalThis.matchMedia?.("(prefers-color-scheme: dark)");
  private readonly follow = () => {
    if (this.follows) this.set(this.preferred);
  };
  private host: Name;
  private readonly follows: boolean;

  constructor(
    fixed: Name | undefined,
    private readonly changed: () => void,
  ) {
    this.follows = !fixed;
    this.host = fixed ?? this.preferred;
    this.media?.addEventListener?.("change", this.follow);
  }

  private get preferred(): Name {
    return this.media?.matches ? "dark" : "light";
  }

  set(theme: Name): void {
    this.host = theme;
    this.changed();
  }

  choose(wanted: Name | "auto"): Theme {
    if (this.printing) return light;
    return (wanted === "auto" ? this.host : wanted) === "dark" ? dark : light;
  }

  stop(): void {
    this.media?.removeEventListener?.("change", this.follow);
  }
}

/** Whether the colours of the page were changed. */
export function paintTheme(root: HTMLElement, theme: Theme): boolean {
  if (root.classList.contains("ck-dark") === theme.dark && root.style.getPropertyValue("--ck-page")) return false;
  root.classList.toggle("ck-dark", theme.dark);
  for (const [name, value] of Object.entries(themeVariables(theme))) root.style.setProperty(name, value);
  return true;
}
