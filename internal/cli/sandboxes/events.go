package sandboxes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func (c commands) sandboxEvents() *cobra.Command {
	tail := 0
	cmd := c.WithOutput(&cobra.Command{
		Use:   "events SANDBOX",
		Short: "Show what happens to a sandbox: its steps, denied connections, used credentials",
		Long: `Show the events of a sandbox, past and new, until it ends: the steps of its creation, connections that
its network policy denied, requests that got the values of secrets, and its end. With -o json, print
a line of JSON per event.`,
		Example: `  harvest sandbox events dev
  harvest sandbox events dev --tail 10
  harvest sandbox events dev -o json | jq 'select(.type == "credential.used").data.use'`,
		Args: cli.Args(1, 1, "one sandbox"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			return c.followSandbox(ctx, server, client.Follow{Stream: args[0], Tail: tail})
		}),
	}, cli.FormatTable)
	cmd.Flags().IntVar(&tail, "tail", 0, "show only the last N past events")
	return cmd
}

// lastEvents are the types of events that end a sandbox.
var lastEvents = []string{"sandbox.terminated", "sandbox.failed"}

// followSandbox prints events until the sandbox has ended, or ctx ends.
func (c commands) followSandbox(ctx context.Context, server *client.Client, f client.Follow) error {
	for e, err := range server.Events(ctx, f) {
		if ctx.Err() != nil {
			return nil // interrupted
		}
		if err != nil {
			return err
		}
		if c.Format == cli.FormatJSON {
			err = cli.PrintLine(c.Out, struct {
				ID   int64           `json:"id"`
				Type string          `json:"type"`
				Data json.RawMessage `json:"data"`
			}{e.ID, e.Type, e.Data})
		} else {
			_, err = fmt.Fprintln(c.Out, eventLine(e))
		}
		if err != nil || slices.Contains(lastEvents, e.Type) {
			return err
		}
	}
	return nil
}

// eventLine is an event as text: its type, and what its data says.
func eventLine(e api.Event) string {
	var d struct {
		Reason string             `json:"reason"`
		Stage  *api.Stage         `json:"stage"`
		Denial *api.Denial        `json:"denial"`
		Use    *api.CredentialUse `json:"use"`
	}
	_ = json.Unmarshal(e.Data, &d) // an event of a newer server is shown by its type
	words := []string{e.Type}
	switch {
	case d.Stage != nil:
		words = append(words, d.Stage.Name, time.Duration(d.Stage.MS*float64(time.Millisecond)).Round(
			time.Millisecond/10).String())
	case d.Denial != nil:
		words = append(words, d.Denial.Protocol, strings.TrimSpace(d.Denial.Domain+" "+d.Denial.Address)+":",
			d.Denial.Reason)
	case d.Use != nil:
		words = append(words, d.Use.Secret, strings.TrimSpace(d.Use.Method+" "+d.Use.Host+d.Use.Path))
		if d.Use.Status != 0 {
			words = append(words, fmt.Sprint(d.Use.Status))
		}
		if d.Use.Count > 1 {
			words = append(words, fmt.Sprintf("(%d times)", d.Use.Count))
		}
		if d.Use.Refused != "" {
			words[len(words)-1] += ": " + d.Use.Refused
		}
	case d.Reason != "":
		words = append(words, d.Reason)
	}
	return strings.Join(words, " ")
}
