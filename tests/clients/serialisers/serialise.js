// Reads records as JSON, one on each line, and writes each as JSON.stringify writes it.
const lines = require("fs").readFileSync(0, "utf8").split("\n").filter(Boolean);
process.stdout.write(lines.map((line) => JSON.stringify(JSON.parse(line)) + "\n").join(""));
