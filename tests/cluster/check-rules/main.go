// check-rules reads groups of rules (YAML or JSON) from standard input, and has Prometheus' own parsers look at them, as promtool check
// rules does: expressions, durations, labels, and the templates of alerts.
package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "check-rules:", err)
		os.Exit(1)
	}
	_, faults := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
	for _, fault := range faults {
		fmt.Fprintln(os.Stderr, "check-rules:", fault)
	}
	if len(faults) > 0 {
		os.Exit(1)
	}
}
