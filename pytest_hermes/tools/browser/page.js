// What runs inside a page: a selector engine whose answers are text (a detached element that holds JSON) or the element
// of a reference. It lives in a script world of its own, so a page sees neither it nor its state and cannot change the
// functions that it calls. Every command is bounded by what it is given, however large the page is.
(() => {
  const token = [...crypto.getRandomValues(new Uint32Array(2))].join("-");
  const ids = new WeakMap();
  const elements = new Map();
  let lastId = 0;
  let labels = null;

  const MAX_DEPTH = 600;
  const NAME_CHARS = 200;
  const COMPACT_TEXT_CHARS = 200;
  const IMPLICIT = {
    A: (e) => (e.hasAttribute("href") ? "link" : ""), AREA: (e) => (e.hasAttribute("href") ? "link" : ""),
    ARTICLE: "article", ASIDE: "complementary", BLOCKQUOTE: "blockquote", BUTTON: "button", CODE: "code",
    DETAILS: "group", DIALOG: "dialog", FIELDSET: "group", FIGURE: "figure", FOOTER: "contentinfo", FORM: "form",
    H1: "heading", H2: "heading", H3: "heading", H4: "heading", H5: "heading", H6: "heading", HEADER: "banner",
    HR: "separator", IFRAME: "iframe", FRAME: "iframe", IMG: "img", LI: "listitem", MAIN: "main", METER: "meter",
    NAV: "navigation", OL: "list", OPTGROUP: "group", OPTION: "option", OUTPUT: "status", P: "paragraph",
    PROGRESS: "progressbar", SECTION: "", SELECT: (e) => (e.multiple || e.size > 1 ? "listbox" : "combobox"),
    SUMMARY: "button", TABLE: "table", TBODY: "rowgroup", TD: "cell", TEXTAREA: "textbox", TFOOT: "rowgroup",
    TH: "columnheader", THEAD: "rowgroup", TR: "row", UL: "list", VIDEO: "video", AUDIO: "audio",
  };
  const INPUTS = {
    button: "button", checkbox: "checkbox", color: "textbox", file: "file", hidden: "", image: "button",
    number: "spinbutton", radio: "radio", range: "slider", reset: "button", search: "searchbox", submit: "button",
  };
  const INTERACTIVE = new Set(
    ("button link textbox searchbox combobox listbox option checkbox radio switch slider spinbutton tab menuitem " +
      "menuitemcheckbox menuitemradio treeitem file video audio gridcell").split(" "),
  );
  const NAMED_BY_CONTENT = new Set(
    ("button link heading option checkbox radio switch tab menuitem menuitemcheckbox menuitemradio treeitem " +
      "tooltip").split(" "),
  );
  const TRANSPARENT = new Set(["", "generic", "none", "presentation", "rowgroup"]);
  const SKIPPED = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "META", "LINK", "DATALIST"]);

  // A form's controls hide its own properties when they are named like them: take those of the prototype.
  const typeOf = (node) => Reflect.get(Node.prototype, "nodeType", node);
  const kidsOf = (e) => Reflect.get(Node.prototype, "childNodes", e);
  const attribute = (e, name) => Element.prototype.getAttribute.call(e, name);
  const tagOf = (e) => Reflect.get(Element.prototype, "tagName", e).toUpperCase();
  const clean = (text) => String(text ?? "").replace(/[\s\u0000-\u001f\u007f-\u009f\u2028\u2029]+/g, " ").trim();
  const cut = (text, most) => (text.length > most ? text.slice(0, most) + "…" : text);
  // Text that could be taken for structure is quoted.
  const plain = (text) => (/^[-"'[]|\[@|: |\[ref/.test(text) ? JSON.stringify(text) : text);

  function idOf(element) {
    let id = ids.get(element);
    if (id === undefined) {
      id = ++lastId;
      ids.set(element, id);
      elements.set(id, new WeakRef(element));
    }
    return id;
  }

  // The element that a reference means; none if it was another document's or has been collected.
  function elementOf([theirs, id]) {
    return theirs === token ? elements.get(Number(id))?.deref() : undefined;
  }

  function childrenOf(element) {
    const shadow = Reflect.get(Element.prototype, "shadowRoot", element);
    if (shadow) return shadow.childNodes;
    if (element.nodeName === "SLOT") {
      const assigned = element.assignedNodes({ flatten: true });
      if (assigned.length) return assigned;
    }
    return kidsOf(element);
  }

  function roleOf(element, tag) {
    const given = clean(attribute(element, "role")).split(" ")[0].toLowerCase();
    if (given && given !== "presentation" && given !== "none") return given === "image" ? "img" : given;
    if (tag === "INPUT") return INPUTS[element.type] ?? "textbox";
    const implicit = IMPLICIT[tag];
    const role = typeof implicit === "function" ? implicit(element) : implicit;
    if (!role && isEditable(element)) return "textbox";
    return role ?? (tag === "SVG" && attribute(element, "aria-label") ? "img" : "");
  }

  function isEditable(element) {
    const value = attribute(element, "contenteditable");
    return value !== null && value.toLowerCase() !== "false";
  }

  function textWithin(node, most) {
    let text = "";
    const visit = (current, depth) => {
      if (text.length > most || depth > MAX_DEPTH) return;
      if (typeOf(current) === 3) text += current.data.slice(0, most);
      if (typeOf(current) !== 1 || SKIPPED.has(tagOf(current)) || attribute(current, "aria-hidden") === "true") return;
      const tag = tagOf(current);
      if (tag === "IMG") text += " " + (attribute(current, "alt") ?? "") + " ";
      if (attribute(current, "aria-label") && depth) { text += " " + attribute(current, "aria-label") + " "; return; }
      if (depth && !isShown(getComputedStyle(current))) return;
      const isBlock = tag === "BR" || /^(DIV|P|LI|TD|TH|TR|H[1-6]|SECTION|UL|OL)$/.test(tag);
      if (isBlock) text += " ";
      for (const child of childrenOf(current)) visit(child, depth + 1);
      if (isBlock) text += " ";
    };
    visit(node, 0);
    return cut(clean(text), most);
  }

  const isShown = (style) => style.display !== "none" && style.visibility === "visible";

  function nameOf(element, tag, role) {
    const labelledby = clean(attribute(element, "aria-labelledby"));
    if (labelledby) {
      const root = Node.prototype.getRootNode.call(element);
      const parts = labelledby.split(" ").slice(0, 10).map((id) => root.getElementById?.(id)).filter(Boolean);
      const text = clean(parts.map((part) => textWithin(part, NAME_CHARS)).join(" "));
      if (text) return cut(text, NAME_CHARS);
    }
    const label = clean(attribute(element, "aria-label"));
    if (label) return cut(label, NAME_CHARS);
    let text = "";
    if (tag === "INPUT" && ["button", "submit", "reset"].includes(element.type)) {
      text = element.value || { submit: "Submit", reset: "Reset" }[element.type] || "";
    } else if (tag === "IMG" || tag === "AREA" || (tag === "INPUT" && element.type === "image")) {
      text = attribute(element, "alt") ?? "";
    } else if (["INPUT", "SELECT", "TEXTAREA", "METER", "PROGRESS", "OUTPUT"].includes(tag) && element.labels?.length) {
      text = [...element.labels].slice(0, 5).map((one) => textWithout(one, element)).join(" ");
    } else if (tag === "FIELDSET" || tag === "TABLE" || tag === "FIGURE") {
      const child = { FIELDSET: "LEGEND", TABLE: "CAPTION", FIGURE: "FIGCAPTION" }[tag];
      const found = [...kidsOf(element)].slice(0, 50).find((kid) => kid.nodeName === child);
      text = found ? textWithin(found, NAME_CHARS) : "";
    } else if (tag === "OPTION") {
      text = element.label;
    } else if (tag === "OPTGROUP") {
      text = attribute(element, "label") ?? "";
    }
    if (!clean(text) && NAMED_BY_CONTENT.has(role)) text = textWithin(element, NAME_CHARS);
    text = clean(text) || clean(attribute(element, "title")) || clean(attribute(element, "placeholder"));
    return cut(text, NAME_CHARS);
  }

  function textWithout(label, control) {
    let text = "";
    for (const child of kidsOf(label)) {
      if (child !== control && !(typeOf(child) === 1 && child.contains(control))) text += " " + textWithin(child, NAME_CHARS);
      else if (child !== control) text += " " + textWithout(child, control);
    }
    return clean(text);
  }

  function statesOf(element, tag, role, focused) {
    const states = [];
    const aria = (name) => attribute(element, "aria-" + name);
    if (role === "heading") states.push("level=" + (aria("level") || (/^H[1-6]$/.test(tag) ? tag[1] : 2)));
    if (["checkbox", "radio", "switch", "menuitemcheckbox", "menuitemradio"].includes(role)) {
      const native = tag === "INPUT";
      if ((native && element.indeterminate) || aria("checked") === "mixed") states.push("checked=mixed");
      else if (native ? element.checked : aria("checked") === "true") states.push("checked");
    }
    if ((tag === "OPTION" && element.selected) || aria("selected") === "true") states.push("selected");
    if (Element.prototype.matches.call(element, ":disabled") || aria("disabled") === "true") states.push("disabled");
    if (tag === "SUMMARY" && element.parentElement?.nodeName === "DETAILS") {
      states.push(element.parentElement.open ? "expanded" : "collapsed");
    } else if (aria("expanded")) states.push(aria("expanded") === "true" ? "expanded" : "collapsed");
    if (aria("pressed") && aria("pressed") !== "false") states.push(aria("pressed") === "mixed" ? "pressed=mixed" : "pressed");
    if (aria("current") && aria("current") !== "false") states.push("current");
    if (aria("invalid") && aria("invalid") !== "false") states.push("invalid");
    if (["INPUT", "SELECT", "TEXTAREA"].includes(tag)) {
      if (element.required) states.push("required");
      if (element.readOnly) states.push("readonly");
    }
    if (element === focused) states.push("focused");
    return states.map((state) => ` [${state}]`).join("");
  }

  function valueOf(element, tag, role, most) {
    if (tag === "SELECT") return [...element.selectedOptions].slice(0, 20).map((one) => clean(one.label)).join(", ");
    if (tag === "INPUT" && element.type === "password") return "•".repeat(Math.min(element.value.length, 100));
    if (tag === "INPUT" && element.type === "file") return [...element.files].map((file) => file.name).join(", ");
    if (tag === "INPUT" && ["checkbox", "radio", "button", "submit", "reset", "image"].includes(element.type)) return "";
    if (["INPUT", "TEXTAREA", "PROGRESS", "METER"].includes(tag)) return cut(clean(String(element.value ?? "").slice(0, most)), most);
    if (role === "textbox" || role === "searchbox") return textWithin(element, most);
    return clean(attribute(element, "aria-valuetext") ?? attribute(element, "aria-valuenow") ?? "");
  }

  function kindOf(element, tag) {
    if (tag === "SELECT" || tag === "OPTION") return tag.toLowerCase();
    if (tag === "INPUT" && element.type === "file") return "file";
    return "";
  }

  // Lines are [depth, head, id or 0, tail, kind, frame or -1]. Stops after `most` characters; `above` leaves out what
  // the viewport has been scrolled past.
  function snapshot(full, most, above) {
    const lines = [];
    const frames = [];
    let used = 0;
    let isCut = false;
    let skippedAbove = 0;
    const textChars = full ? 20000 : COMPACT_TEXT_CHARS;

    const push = (depth, head, id, tail, kind, frame) => {
      used += 2 * depth + head.length + tail.length + 10;
      if (used > most) { isCut = true; return false; }
      lines.push([depth, head, id, tail, kind, frame]);
      return true;
    };
    const flush = (pending, depth) => {
      const text = clean(pending.text);
      pending.text = "";
      if (text) push(depth, "text", 0, ": " + plain(cut(text, textChars)), "", -1);
    };

    function walk(node, depth, level, pending, pointer, muted, focused) {
      if (isCut) return;
      if (typeOf(node) === 3) {
        if (!muted && pending.text.length <= textChars) pending.text += node.data.slice(0, textChars + 1);
        return;
      }
      if (typeOf(node) !== 1 || level > MAX_DEPTH) return;
      const tag = tagOf(node);
      if (SKIPPED.has(tag) || attribute(node, "aria-hidden") === "true" || node === labels) return;
      if (tag === "BR") { pending.text += " "; return; }
      const isChoice = tag === "OPTION" || tag === "OPTGROUP";
      const style = getComputedStyle(node);
      if (style.display === "none" && !isChoice) return;
      const shown = isChoice || style.visibility === "visible";
      if (above && node !== document.body && style.position !== "fixed" && style.display !== "contents") {
        const box = Element.prototype.getBoundingClientRect.call(node);
        if (box.bottom < 0 && box.height > 0) { skippedAbove += 1; return; }
      }
      const role = roleOf(node, tag);
      if (tag === "INPUT" && node.type === "hidden") return;
      const isPointer = style.cursor === "pointer";
      const isActive = shown && (INTERACTIVE.has(role) || isEditable(node) || (isPointer && !pointer)
        || attribute(node, "onclick") !== null || Number(attribute(node, "tabindex") ?? -1) >= 0);
      const isPlain = TRANSPARENT.has(role) && !isActive;
      const descend = (into, mute, text) => {
        const active = Reflect.get(Element.prototype, "shadowRoot", node)?.activeElement ?? focused;
        const isClosed = tag === "DETAILS" && !node.open;
        for (const child of childrenOf(node)) {
          if (isClosed && child.nodeName !== "SUMMARY") continue;
          walk(child, into, level + 1, text, pointer || isPointer, mute, active);
          if (isCut) return;
        }
      };
      if (!shown || isPlain) {
        const isInline = style.display.startsWith("inline") || style.display === "contents";
        if (!isInline) flush(pending, depth);
        descend(depth, muted || !shown, pending);
        if (!isInline) flush(pending, depth);
        return;
      }
      const isText = ["paragraph", "code", "listitem", "cell", "blockquote"].includes(role) && !isActive;
      let name = isText ? "" : nameOf(node, tag, role);
      if (role === "img" && !name && !full) { flush(pending, depth); return; }
      if (role === "separator" && !full) { flush(pending, depth); return; }
      flush(pending, depth);
      const generic = TRANSPARENT.has(role);
      if (generic && !name) name = textWithin(node, NAME_CHARS);
      const value = valueOf(node, tag, role, textChars);
      const head = (generic ? "clickable" : role.replace(/[^\w-]/g, "")) + (name ? " " + JSON.stringify(name) : "")
        + statesOf(node, tag, role, focused);
      const link = full && ["A", "IMG", "IFRAME"].includes(tag) ? cut(clean(node.href || node.src), 300) : "";
      const place = link && ` <${link}>`;
      let tail = place + (value && value !== name ? ": " + plain(cut(value, textChars)) : "");
      const isRef = isActive || (full && !isText && !generic);
      const frame = tag === "IFRAME" || tag === "FRAME" ? frames.push(node) - 1 : -1;
      const at = lines.length;
      if (!push(depth, head, isRef ? idOf(node) : 0, tail, kindOf(node, tag), frame)) return;
      if (["INPUT", "TEXTAREA", "IMG", "IFRAME", "FRAME", "OPTION"].includes(tag)) return;
      if (role === "textbox" || role === "searchbox") return;
      if (tag === "SELECT" && !full && node.length > 30) {
        push(depth + 1, "text", 0, `: ${node.length} options; full=true lists them`, "", -1);
        return;
      }
      const text = { text: "" };
      const isNamedByContent = NAMED_BY_CONTENT.has(role) || generic;
      descend(depth + 1, isNamedByContent, text);
      const rest = clean(text.text);
      if (rest && lines.length === at + 1 && !tail) {
        tail = ": " + plain(cut(rest, textChars));
        used += tail.length;
        lines[at][3] = tail;
      } else {
        flush(text, depth + 1);
      }
      if (isText && lines.length === at + 1 && !lines[at][3]) lines.pop();
    }

    const pending = { text: "" };
    const top = document.body ?? document.documentElement;
    if (top) {
      walk(top, 0, 0, pending, false, false, document.activeElement === document.body ? null : document.activeElement);
      flush(pending, 0);
    }
    snapshot.frames = frames;
    return {
      token, lines, cut: isCut, used, above: skippedAbove, title: cut(clean(document.title), 500),
      elements: document.getElementsByTagName("*").length, scrolled: Math.round(scrollY),
      height: Math.max(document.documentElement?.scrollHeight ?? 0, 0),
    };
  }

  function everyElement(most, wanted) {
    const found = [];
    let visited = 0;
    const visit = (root) => {
      const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
      for (let node = walker.currentNode; node && visited < 200000 && found.length < most; node = walker.nextNode()) {
        visited += 1;
        if (typeOf(node) !== 1) continue;
        if (wanted(node)) found.push(node);
        const shadow = Reflect.get(Element.prototype, "shadowRoot", node);
        if (shadow) visit(shadow);
      }
    };
    visit(document);
    return found;
  }

  function images(most) {
    return everyElement(most, (node) => node.nodeName === "IMG" && node.src).map((image) => ({
      src: cut(image.currentSrc || image.src, image.src.startsWith("data:") ? 80 : 2000), alt: cut(clean(image.alt), 500),
      width: image.naturalWidth, height: image.naturalHeight,
    }));
  }

  function scroll(pixels) {
    const page = document.scrollingElement;
    let target = page;
    const room = (e) => e.scrollHeight - e.clientHeight;
    if (!page || room(page) < 2) {
      const areas = everyElement(200, (node) => room(node) > 1 && /auto|scroll/.test(getComputedStyle(node).overflowY));
      target = areas.sort((a, b) => b.clientWidth * b.clientHeight - a.clientWidth * a.clientHeight)[0] ?? page;
    }
    target?.scrollBy({ top: pixels, behavior: "instant" });
    return { top: Math.round(target?.scrollTop ?? 0), most: target ? Math.max(0, room(target)) : 0 };
  }

  function label(pairs) {
    unlabel();
    labels = document.createElement("div");
    labels.style.cssText = "all:initial;position:fixed;inset:0;z-index:2147483647;pointer-events:none";
    const root = labels.attachShadow({ mode: "closed" });
    for (const [id, number] of pairs) {
      const box = elements.get(id)?.deref()?.getBoundingClientRect();
      if (!box || !box.width || !box.height || box.bottom < 0 || box.top > innerHeight) continue;
      const frame = document.createElement("div");
      frame.style.cssText = `position:absolute;box-sizing:border-box;border:2px solid #d00;left:${box.left}px;` +
        `top:${box.top}px;width:${box.width}px;height:${box.height}px`;
      const tag = document.createElement("span");
      tag.textContent = "@e" + number;
      tag.style.cssText = "position:absolute;left:-2px;top:-2px;transform:translateY(" + (box.top > 14 ? "-100%" : "0") +
        ");background:#d00;color:#fff;font:bold 11px/13px sans-serif;padding:0 3px;white-space:nowrap";
      frame.append(tag);
      root.append(frame);
    }
    document.documentElement.append(labels);
    return {};
  }

  function unlabel() {
    labels?.remove();
    labels = null;
    return {};
  }

  function answer(value) {
    const holder = document.createElementNS("http://www.w3.org/1999/xhtml", "div");
    holder.textContent = JSON.stringify(value);
    return [holder];
  }

  function run(command) {
    const [verb, ...words] = command.split(";");
    if (verb === "element") {
      const element = elementOf(words);
      return element?.isConnected ? [element] : [];
    }
    if (verb === "select") {
      const element = elementOf(words);
      const select = element?.isConnected ? element.closest("select") : null;
      return select ? [select] : [];
    }
    if (verb === "frame") return snapshot.frames?.[Number(words[0])] ? [snapshot.frames[Number(words[0])]] : [];
    if (verb === "snapshot") {
      const [full, most] = [words[0] === "1", Number(words[1])];
      const whole = snapshot(full, most, false);
      return answer(whole.cut && whole.scrolled > 0 ? snapshot(full, most, true) : whole);
    }
    if (verb === "images") return answer(images(Number(words[0])));
    if (verb === "scroll") return answer(scroll(Number(words[0])));
    if (verb === "label") return answer(label(JSON.parse(words[0])));
    if (verb === "unlabel") return answer(unlabel());
    if (verb === "index") {
      const element = elementOf(words);
      return answer({ index: element?.nodeName === "OPTION" ? element.index : -1 });
    }
    return [];
  }

  return { query: (_, command) => run(command)[0] ?? null, queryAll: (_, command) => run(command) };
})()
