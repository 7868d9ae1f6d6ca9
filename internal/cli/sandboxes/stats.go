package sandboxes

import (
	"context"
	"fmt"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// statsEvery is the interval of --watch.
const statsEvery = 2 * time.Second

func (c commands) sandboxStats() *cobra.Command {
	var watch bool
	cmd := c.WithOutput(&cobra.Command{
		Use:   "stats [SANDBOX…]",
		Short: "Show CPU, memory and network use of sandboxes",
		Long: `Show the resource use of sandboxes, by default of all that have not ended. CPU is in cores, between the
last two samples, which are a few seconds apart. Memory excludes the page cache.

With -o json, print the samples of the sandbox's whole life, also after its end. With --watch, print
a line of JSON per sandbox each time.`,
		Example: `  harvest sandbox stats
  harvest sandbox stats dev --watch
  harvest sandbox stats dev -o json`,
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			for {
				if err := c.stats(ctx, server, args, watch); err != nil || !watch {
					return err
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(statsEvery):
				}
			}
		}),
	}, cli.FormatTable)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "repeat every 2 seconds, until interrupted")
	return cmd
}

// sandboxStats is the usage of one sandbox, as JSON.
type sandboxStats struct {
	ID   string  `json:"id"`
	Name string  `json:"name,omitempty"`
	CPU  float64 `json:"cpu_cores"` // between the last two samples; 0 without two
	api.Used
}

// stats shows the usage of the sandboxes with these refs, or of all.
func (c commands) stats(ctx context.Context, server *client.Client, refs []string, watch bool) error {
	found, err := statsOf(ctx, server, refs)
	if err != nil {
		return err
	}
	v := cli.View{Header: []string{"SANDBOX", "NAME", "CPU", "CPU TIME", "MEMORY", "PEAK", "RECEIVED", "SENT"}}
	all := []sandboxStats{}
	for _, s := range found {
		row := []string{s.ID, cli.OrDash(s.Name), "-", "-", "-", cli.Size(s.PeakMemory), "-", "-"}
		if n := len(s.Samples); n > 0 {
			last := s.Samples[n-1]
			row[3], row[4] = fmt.Sprintf("%.1f s", last.CPU), units.BytesSize(float64(last.Memory))
			row[6], row[7] = units.BytesSize(float64(last.Received)), units.BytesSize(float64(last.Sent))
			if n > 1 {
				row[2] = fmt.Sprintf("%.2f", s.CPU)
			}
		}
		v.Names, v.Rows, all = append(v.Names, s.ID), append(v.Rows, row), append(all, s)
		if watch && c.Format == cli.FormatJSON {
			s.Samples = s.Samples[max(0, len(s.Samples)-1):]
			if err := cli.PrintLine(c.Out, s); err != nil {
				return err
			}
		}
	}
	if watch && c.Format == cli.FormatJSON {
		return nil
	}
	v.JSON = all
	return c.Show(v)
}

func statsOf(ctx context.Context, server *client.Client, refs []string) ([]sandboxStats, error) {
	var boxes []api.Sandbox
	for _, ref := range refs {
		one, err := server.Sandbox(ctx, ref)
		if err != nil {
			return nil, err
		}
		boxes = append(boxes, one)
	}
	if len(refs) == 0 {
		var err error
		if boxes, err = All(ctx, server, api.SandboxFilter{}); err != nil {
			return nil, err
		}
	}
	var all []sandboxStats
	for _, b := range boxes {
		used, err := server.SandboxUsage(ctx, b.ID)
		if err != nil && (len(refs) > 0 || !errors.Is(err, errors.NotFound)) { // with all, one may be gone
			return nil, err
		}
		s := sandboxStats{ID: b.ID, Name: b.Name, Used: used}
		if n := len(used.Samples); n > 1 {
			last, before := used.Samples[n-1], used.Samples[n-2]
			s.CPU = (last.CPU - before.CPU) / last.Time.Sub(before.Time).Seconds()
		}
		all = append(all, s)
	}
	return all, nil
}
