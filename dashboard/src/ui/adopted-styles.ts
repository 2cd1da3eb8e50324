// Style elements of the terminal as adopted style sheets, since the page's policy forbids inline ones.

/** While `work` runs, style elements that it makes are stand-ins whose text becomes an adopted sheet. */
export function withAdoptedStyles(work: () => void): void {
  const own = Object.getOwnPropertyDescriptor(document, "createElement");
  const make = document.createElement.bind(document);
  const stand = (tag: string, options?: ElementCreationOptions) => (tag === "style" ? adoptedStyle(make("template")) : make(tag, options));
  document.createElement = stand as typeof document.createElement;
  try {
    work();
  } finally {
    if (own) Object.defineProperty(document, "createElement", own);
    else delete (document as { createElement?: unknown }).createElement;
  }
}

/** Make the element look like <style> to its user; its sheet goes with it. */
function adoptedStyle(element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  let text = "";
  Object.defineProperty(element, "textContent", {
    get: () => text,
    set: (value: string) => {
      text = value;
      sheet.replaceSync(value);
    },
  });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    HTMLElement.prototype.remove.call(element);
  };
  return element;
}
