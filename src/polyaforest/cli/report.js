// Sorts the findings of a report by the numbers or texts in data-key of their cells; inlined into the page.
document.querySelectorAll("table.findings").forEach(function (table) {
  table.querySelectorAll(":scope > thead button").forEach(function (button, at) {
    button.addEventListener("click", function () {
      var head = button.parentNode, down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      var key = function (body) { return body.rows[0].cells[at].getAttribute("data-key"); };
      Array.from(table.tBodies).sort(function (one, other) {
        var a = key(one), b = key(other), c = Number(a) - Number(b);
        c = isNaN(c) ? (a < b ? -1 : a > b ? 1 : 0) : c;
        return down ? -c : c;
      }).forEach(function (body) { table.appendChild(body); });
    });
  });
});
