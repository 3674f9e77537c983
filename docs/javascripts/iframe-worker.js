// Browsers start no worker for a page that was opened from disk, and the search of this site is one.
// There its script runs in a hidden frame of the page instead. As between a page and a worker, either
// side gets a copy of what the other sends: the search changes the query that it is given.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.tell("message", structuredClone(data));
      inside.onerror = (message) => this.tell("error", message);
      const script = inside.document.createElement("script");
      this.ready = new Promise((resolve) => {
        script.onload = resolve;
      });
      script.onerror = () => this.tell("error", `${url} cannot be read`);
      script.src = new URL(url, location.href);
      inside.document.head.append(script);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      const copy = structuredClone(data);
      this.ready.then(() => inside.dispatchEvent(new MessageEvent("message", { data: copy })));
    }

    terminate() {
      this.frame.remove();
    }

    tell(type, data) {
      setTimeout(() => {
        const event = new MessageEvent(type, { data });
        this.dispatchEvent(event);
        this[`on${type}`]?.(event);
      });
    }
  };
}
