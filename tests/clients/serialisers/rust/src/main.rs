//! Reads records as JSON, one on each line, and writes each as serde_json writes it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufWriter, Write};

#[derive(Serialize, Deserialize)]
struct Place {
    city: String,
    zip: i32,
}

#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
    name: String,
    price: f64,
    ratio: f32,
    ok: bool,
    at: String,
    day: String,
    tags: Vec<String>,
    place: Place,
    note: Option<String>,
    labels: BTreeMap<String, String>,
}

fn main() -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        serde_json::to_writer(&mut out, &order)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}
