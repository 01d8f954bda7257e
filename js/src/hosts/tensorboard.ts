// The TensorBoard tab: data over HTTP, runs and colours as TensorBoard has them, the state in the page's address.
import { decodeState, encodeState, mount } from "../view/mount.ts";
import { connectGuest } from "./guest.ts";
import { HttpSource } from "./http.ts";
import { parentTheme, readAddress, watchParent, writeAddress } from "./parent.ts";

const KEY = "cockpit.state";

function remembered(): string {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // third-party frames may not have a storage
  }
}

// A link says what to look at; how panels are arranged lasts across links.
function firstState() {
  const saved = decodeState(remembered());
  const linked = readAddress();
  const arrangement = {
    hidden: saved.hidden,
    shown: saved.shown,
    order: saved.order,
    theme: saved.theme,
    safe: saved.safe,
    smoothing: saved.smoothing,
  };
  return linked ? { ...arrangement, ...JSON.parse(encodeState(decodeState(linked)) || "{}") } : arrangement;
}

export function render(): void {
  document.documentElement.style.height = "100%";
  document.body.style.cssText = "margin:0;height:100%";
  const source = new HttpSource("./");
  const cockpit = mount(document.body, source, {
    palette: "tensorboard",
    theme: parentTheme(),
    height: "100%",
    onTheme: (_, page) => {
      document.body.style.background = page;
    },
    state: { ...decodeState(""), ...firstState() },
    onState: (state) => {
      const text = encodeState({ ...state, paused: false });
      writeAddress(text);
      try {
        localStorage.setItem(KEY, text);
      } catch {
        // nothing is remembered then
      }
    },
  });
  const guest = connectGuest({ runs: (names) => source.setOrder(names), reload: () => source.refresh() });
  const unwatch = watchParent({
    theme: (theme) => cockpit.update({ theme }),
    address: (text) => cockpit.update({ state: decodeState(text) }),
  });
  addEventListener(
    "pagehide",
    () => {
      unwatch();
      guest.close();
      cockpit.destroy();
    },
    { once: true },
  );
}
