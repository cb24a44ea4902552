// A browser starts no worker from a file of the disk. The search of the site then runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.onmessage = null;
      this.onerror = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.onmessage?.(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        for (const data of this.waiting.splice(0)) this.deliver(data);
        this.waiting = null;
      };
      script.onerror = (event) => this.onerror?.(event);
      inner.document.body.append(script);
    }

    deliver(data) {
      const inner = this.frame.contentWindow;
      inner?.dispatchEvent(new inner.MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else setTimeout(() => this.deliver(data));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
