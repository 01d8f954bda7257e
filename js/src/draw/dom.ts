// Elements are built from nodes and plain strings only: whatever a user named is text, never markup.

type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined>;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : String(value));
  for (const child of children) if (child) element.append(child);
  return element;
}

export function press(name: string, act: () => void, attributes: Attributes, ...children: Child[]): HTMLButtonElement {
  const button = h("button", { type: "button", class: name, ...attributes }, ...children);
  button.addEventListener("click", act);
  return button;
}

/** A dot in the colour of a run. */
export function swatch(color: string, className = "ck-swatch", title?: string): HTMLElement {
  const dot = h("i", { class: className, title });
  dot.style.setProperty("--c", color);
  return dot;
}

/** Replaces the children only if the key changed, so that focus and selection survive an update that brings nothing new. */
export function refill(element: HTMLElement & { ckKey?: string }, key: string, make: () => Child[]): void {
  if (element.ckKey === key) return;
  element.ckKey = key;
  element.replaceChildren(...(make().filter(Boolean) as (Node | string)[]));
}

export function setText(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element: Element, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Written only if it changes something: the page treats every write as a change. */
export function setHidden(element: HTMLElement, hidden: boolean): void {
  if (element.hidden !== hidden) element.hidden = hidden;
}

export function setClass(element: HTMLElement, name: string, on: boolean): void {
  if (element.classList.contains(name) !== on) element.classList.toggle(name, on);
}

export function setData(element: HTMLElement, values: Record<string, string | number | undefined>): void {
  for (const [name, value] of Object.entries(values))
    if (value === undefined) delete element.dataset[name];
    else if (element.dataset[name] !== String(value)) element.dataset[name] = String(value);
}

/** A button that opens a box below itself. One is open at a time per root; Escape and a click elsewhere close it. */
export function popover(
  button: HTMLButtonElement,
  make: () => Node[],
  signal: AbortSignal,
  options: { label: string; className?: string },
): HTMLElement {
  const box = h("div", {
    class: `ck-pop ${options.className ?? ""}`,
    role: "dialog",
    "aria-label": options.label,
    hidden: true,
  });
  const wrap = h("div", { class: "ck-popwrap" }, button, box);
  button.setAttribute("aria-haspopup", "dialog");
  button.setAttribute("aria-expanded", "false");
  const close = (refocus: boolean) => {
    if (box.hidden) return;
    box.hidden = true;
    box.replaceChildren();
    button.setAttribute("aria-expanded", "false");
    if (refocus) button.focus();
  };
  const open = () => {
    wrap.closest(".ck-root")?.dispatchEvent(new CustomEvent("ck-close"));
    box.replaceChildren(...make());
    box.hidden = false;
    button.setAttribute("aria-expanded", "true");
    keepInside(box);
    box.scrollIntoView?.({ block: "nearest" });
    box.querySelector<HTMLElement>("button, input, select, a")?.focus({ preventScroll: true });
  };
  button.addEventListener("click", () => (box.hidden ? open() : close(true)), { signal });
  const closeOnEscape = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || box.hidden) return;
    event.stopPropagation();
    close(true);
  };
  // On the document: a choice inside may have replaced the element that had the focus.
  document.addEventListener("keydown", closeOnEscape, { signal, capture: true });
  wrap.addEventListener("ck-close", () => close(false), { signal });
  return wrap;
}

function keepInside(box: HTMLElement): void {
  box.style.transform = "";
  const root = box.closest(".ck-root")?.getBoundingClientRect();
  const own = box.getBoundingClientRect();
  if (!root) return;
  const over = Math.max(0, own.right - root.right + 8);
  const under = Math.max(0, root.left + 8 - own.left);
  if (over || under) box.style.transform = `translateX(${under ? under : -over}px)`;
}

/** All of them, except the one that contains `except`. */
export function closePopovers(root: HTMLElement, except: EventTarget | null = null): void {
  const inside = (except as Element | null)?.closest?.(".ck-popwrap");
  for (const wrap of root.querySelectorAll(".ck-popwrap"))
    if (wrap !== inside) wrap.dispatchEvent(new CustomEvent("ck-close"));
}
