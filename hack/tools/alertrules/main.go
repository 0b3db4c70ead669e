// Evaluates alert rules on series with Prometheus's own engine, for tests.
//
// It reads a document {"rules": [...], "cases": [...]} from standard input, and writes one list of firing alerts for each
// case to standard output. A rule has the fields of a PrometheusRule. Series are in the notation of promtool's unit tests.
// The package `rules` of Prometheus would do the same, and needs three times as many packages.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// step is the time between two samples of a series, and between two evaluations of a rule.
const step = time.Minute

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         model.Duration    `json:"for"`
	Annotations map[string]string `json:"annotations"`
}

type testCase struct {
	// Alerts are the rules to evaluate; all of them if empty.
	Alerts []string `json:"alerts"`
	Series []string `json:"series"`
	// Start and End are the minutes of the first and the last evaluation.
	Start int `json:"start"`
	End   int `json:"end"`
}

type fired struct {
	Alert   string            `json:"alert"`
	Labels  map[string]string `json:"labels"`
	From    int               `json:"from"`
	Until   int               `json:"until"`
	Summary string            `json:"summary"`
}

type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// memory is a storage of the series of a case.
type memory struct {
	storage.LabelQuerier
	series []storage.Series
}

func (m memory) Querier(int64, int64) (storage.Querier, error) { return m, nil }
func (m memory) Close() error                                  { return nil }

func (m memory) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, series := range m.series {
		if matches(series.Labels(), matchers) {
			found = append(found, series)
		}
	}
	return &seriesSet{found: found}
}

func matches(own labels.Labels, matchers []*labels.Matcher) bool {
	for _, matcher := range matchers {
		if !matcher.Matches(own.Get(matcher.Name)) {
			return false
		}
	}
	return true
}

type seriesSet struct {
	found []storage.Series
	next  int
}

func (s *seriesSet) Next() bool                        { s.next++; return s.next <= len(s.found) }
func (s *seriesSet) At() storage.Series                { return s.found[s.next-1] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

func load(parse parser.Parser, texts []string) (memory, error) {
	var loaded memory
	for _, text := range texts {
		name, values, err := parse.ParseSeriesDesc(text)
		if err != nil {
			return loaded, fmt.Errorf("series %q: %w", text, err)
		}
		var samples []chunks.Sample
		for number, value := range values {
			if !value.Omitted {
				samples = append(samples, sample{int64(number) * step.Milliseconds(), value.Value})
			}
		}
		loaded.series = append(loaded.series, storage.NewListSeries(name, samples))
	}
	return loaded, nil
}

// evaluate returns the alerts of a rule: an alert fires when its expression has had a result without a break for `for`.
func evaluate(engine *promql.Engine, own rule, series memory, from, to int) ([]fired, error) {
	start, end := time.Unix(int64(from)*60, 0), time.Unix(int64(to)*60, 0)
	query, err := engine.NewRangeQuery(context.Background(), series, nil, own.Expr, start, end, step)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	result := query.Exec(context.Background())
	if result.Err != nil {
		return nil, result.Err
	}
	matrix, err := result.Matrix()
	if err != nil {
		return nil, err
	}
	var alerts []fired
	for _, series := range matrix {
		active := int64(-1)
		last := int64(-1)
		var open *fired
		for _, point := range series.Floats {
			if active < 0 || point.T-last > step.Milliseconds() {
				active, open = point.T, nil
			}
			last = point.T
			minute := int(point.T / step.Milliseconds())
			if open == nil && point.T-active >= time.Duration(own.For).Milliseconds() {
				summary, err := expand(own, series.Metric, point)
				if err != nil {
					return nil, err
				}
				alerts = append(alerts, fired{own.Alert, series.Metric.Map(), minute, minute, summary})
				open = &alerts[len(alerts)-1]
			}
			if open != nil {
				open.Until = minute
			}
		}
	}
	return alerts, nil
}

func expand(own rule, metric labels.Labels, point promql.FPoint) (string, error) {
	data := template.AlertTemplateData(metric.Map(), nil, "", promql.Sample{T: point.T, F: point.F, Metric: metric})
	text := "{{$labels := .Labels}}{{$value := .Value}}" + own.Annotations["summary"]
	at := model.Time(point.T)
	return template.NewTemplateExpander(
		context.Background(), text, own.Alert, data, at, nil, nil, []string{"missingkey=error"},
	).Expand()
}

func run() error {
	var given struct {
		Rules []rule     `json:"rules"`
		Cases []testCase `json:"cases"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		return err
	}
	parse := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{
		Logger:               slog.New(slog.DiscardHandler),
		MaxSamples:           50_000_000,
		Timeout:              time.Minute,
		EnableAtModifier:     true,
		EnableNegativeOffset: true,
		Parser:               parse,
	})
	results := make([][]fired, len(given.Cases))
	for number, own := range given.Cases {
		series, err := load(parse, own.Series)
		if err != nil {
			return err
		}
		wanted := map[string]bool{}
		for _, name := range own.Alerts {
			wanted[name] = true
		}
		results[number] = []fired{}
		for _, one := range given.Rules {
			if len(wanted) > 0 && !wanted[one.Alert] {
				continue
			}
			alerts, err := evaluate(engine, one, series, own.Start, own.End)
			if err != nil {
				return fmt.Errorf("alert %s: %w", one.Alert, err)
			}
			results[number] = append(results[number], alerts...)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
