// Package sandboxes has the commands for sandboxes and the programs in them: create, run, stream, forward ports.
package sandboxes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/files"
)

// commands makes the commands of this package.
type commands struct{ *cli.CLI }

// Commands returns the command for sandboxes, and the one that runs a program in a new sandbox.
func Commands(base *cli.CLI) []*cobra.Command {
	c := commands{base}
	return []*cobra.Command{c.runCommand(), c.sandboxCommand()}
}

func (c commands) sandboxCommand() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:     "sandbox",
		Aliases: []string{"sbx"},
		Short:   "Manage sandboxes",
		Long: `Manage sandboxes that live until they are removed or expire. A sandbox is named by its id, a prefix of
its id, or its name.`,
		Example: `  harvest sandbox create --name dev
  harvest sandbox exec dev -- python3 --version
  harvest sandbox cp report.csv dev:/tmp/
  harvest sandbox rm dev`,
	}, c.sandboxCreate(), c.sandboxList(), c.sandboxGet(), c.sandboxExec(), c.sandboxShell(), files.SandboxCopy(c.CLI),
		files.SandboxFiles(c.CLI), c.sandboxProcesses(), c.sandboxLogs(), c.sandboxStats(), c.sandboxEvents(),
		c.sandboxNetwork(),
		c.sandboxPort(), c.sandboxLinks(), c.sandboxExtend(), c.sandboxSuspend(), c.sandboxWake(), c.sandboxSnapshot(),
		c.sandboxFork(),
		files.SandboxSync(c.CLI), c.sandboxRemove())
}

func (c commands) sandboxCreate() *cobra.Command {
	var box cli.SandboxFlags
	var where cli.ProcessFlags
	var life, idle cli.TimeFlag
	var onEnd bool
	var ports []string
	var idleAction, startCommand string
	cmd := c.WithOutput(&cobra.Command{
		Use:   "create [flags]",
		Short: "Create a sandbox and print its id",
		Example: `  harvest sandbox create --name dev --memory 4GiB -v data:/data
  harvest sandbox create --s3 s3://my-bucket/work:/work:init:sync
  harvest sandbox create --s3 s3://my-bucket/data:/data:mount:ro
  id=$(harvest sandbox create --timeout 2h --idle-timeout 10m)
  harvest sandbox create --name site --start 'npm start' -p 3000 --idle-timeout 10m --idle-action suspend`,
		Args: cli.Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := box.Request(cmd)
			if err != nil {
				return err
			}
			if req.Env, err = c.Environment(where.EnvFile, where.Env); err != nil {
				return err
			}
			req.Workdir, req.User, req.SnapshotOnEnd = where.Workdir, where.User, onEnd
			req.IdleAction = idleAction
			if startCommand != "" {
				req.StartCommand = []string{"sh", "-c", startCommand}
			}
			for _, text := range ports {
				port, err := parsePort(text)
				if err != nil {
					return err
				}
				req.Ports = append(req.Ports, port)
			}
			req.TimeoutSeconds, req.IdleTimeoutSeconds = life.Seconds(), idle.Seconds()
			server, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			building := c.Building()
			made, err := server.CreateSandbox(cmd.Context(), req, building.Update)
			building.Done()
			if err != nil {
				return err
			}
			for _, note := range made.Notes {
				c.Notef("%s", note)
			}
			return c.Show(oneSandbox(made))
		},
	}, cli.FormatName)
	box.Add(cmd)
	where.AddWhere(cmd)
	addPorts(cmd, &ports, "port that \"harvest sandbox port\" forwards, repeatable")
	cmd.Flags().BoolVar(&onEnd, "snapshot-on-end", false,
		"make an image of its files when it ends, for any reason; \"sandbox get\" shows the image")
	cmd.Flags().Var(&life, "timeout", "maximum lifetime (default: timeout of the configuration)")
	cmd.Flags().Var(&idle, "idle-timeout",
		"time without commands, terminals and connections to ports after which the sandbox ends (default: "+
			"idle_timeout of the configuration)")
	cmd.Flags().StringVar(&idleAction, "idle-action", "",
		"what happens then: end, or suspend; a suspended sandbox wakes at the next command, copy or connection "+
			"(default: end)")
	cmd.Flags().StringVar(&startCommand, "start", "",
		"shell `COMMAND` that starts with the sandbox, and again when it wakes without its processes; it does not "+
			"keep the sandbox from becoming idle")
	return cmd
}

func (c commands) sandboxList() *cobra.Command {
	var filter api.SandboxFilter
	var tagTexts []string
	ended := ""
	cmd := cli.Listing(c.CLI, &cobra.Command{
		Short: "List sandboxes, newest first",
		Example: `  harvest sandbox ls --tag team=search
  harvest sandbox ls --all -o json`,
	}, []string{"ID", "NAME", "STATUS", "IMAGE", "CREATED", "EXPIRES"},
		func(ctx context.Context, server *client.Client) (_ []api.Sandbox, err error) {
			if filter.Tags, err = cli.Tags(tagTexts); err != nil {
				return nil, err
			}
			if c.Format == cli.FormatTable && !filter.All {
				if ended, err = countEnded(ctx, server, filter); err != nil {
					return nil, err
				}
			}
			return All(ctx, server, filter)
		}, func(s api.Sandbox) (string, []string) {
			expires := "-"
			if s.Ended.IsZero() && s.Suspended.IsZero() {
				expires = cli.Until(s.Expires)
			}
			return s.ID, []string{s.ID, cli.OrDash(s.Name), s.Status, s.Image, cli.Ago(s.Created), expires}
		})
	list := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := list(cmd, args)
		if err == nil && ended != "" {
			c.Notef("%s ended; to list them: harvest sandbox ls --all", ended)
		}
		return err
	}
	cmd.Flags().BoolVarP(&filter.All, "all", "a", false, "also list sandboxes that have ended")
	cmd.Flags().StringVar(&filter.Name, "name", "", "list only the sandbox of that name")
	cmd.Flags().StringArrayVar(&tagTexts, "tag", nil, "list only sandboxes with the tag KEY=VALUE")
	return cmd
}

// countEnded returns a note with the number of ended sandboxes that match filter, "" for none.
func countEnded(ctx context.Context, server *client.Client, filter api.SandboxFilter) (string, error) {
	filter.All, filter.Limit = true, api.MaxPage
	page, next, err := server.Sandboxes(ctx, filter)
	if err != nil {
		return "", err
	}
	n := 0
	for _, s := range page {
		if !s.Ended.IsZero() {
			n++
		}
	}
	switch {
	case next != "":
		return fmt.Sprintf("more than %d sandboxes have", n), nil
	case n == 1:
		return "1 sandbox has", nil
	case n > 0:
		return fmt.Sprintf("%d sandboxes have", n), nil
	}
	return "", nil
}

// All returns the sandboxes of all pages that match filter.
func All(ctx context.Context, server *client.Client, filter api.SandboxFilter) ([]api.Sandbox, error) {
	all := []api.Sandbox{}
	for {
		page, next, err := server.Sandboxes(ctx, filter)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if next == "" {
			return all, nil
		}
		filter.Cursor = next
	}
}

func (c commands) sandboxGet() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use:     "get SANDBOX",
		Short:   "Show a sandbox",
		Example: "  harvest sandbox get dev -o json",
		Args:    cli.Args(1, 1, "one sandbox"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			found, err := server.Sandbox(ctx, args[0])
			if err != nil {
				return err
			}
			return c.Show(oneSandbox(found))
		}),
	}, cli.FormatTable)
}

// oneSandbox shows all details of a sandbox.
func oneSandbox(s api.Sandbox) cli.View {
	v := cli.View{JSON: s, Names: []string{s.ID}}
	add := func(name, format string, args ...any) {
		v.Rows = append(v.Rows, []string{name, fmt.Sprintf(format, args...)})
	}
	add("id", "%s", s.ID)
	add("name", "%s", cli.OrDash(s.Name))
	add("status", "%s", s.Status)
	if s.Reason != "" {
		add("reason", "%s", s.Reason)
	}
	add("isolation", "%s", s.Isolation)
	add("image", "%s (%s)", s.Image, cli.OrDash(s.ImageID))
	add("limits",
		"%g cores, %s of memory, %s of disk, %d processes, %d open files, %d files in a volume (0 or -: none)",
		s.Limits.CPU, cli.Size(s.Limits.Memory), cli.Size(s.Limits.Disk), s.Limits.Processes, s.Limits.Files,
		s.Limits.VolumeFiles)
	if s.GPU != "" {
		add("gpu", "%s", s.GPU)
	}
	add("network", "%s", networkText(s.Network))
	for _, d := range s.Denials {
		add("denied", "%s, %s", denialText(d), cli.Ago(d.Time))
	}
	for _, port := range s.Ports {
		add("port", "%s", portText(s, port))
	}
	for _, m := range s.Volumes {
		add("volume", "%s at %s", m.Name, m.Path)
	}
	if s.S3 != nil {
		add("s3", "%s", s3Text(*s.S3))
	}
	for _, key := range slices.Sorted(maps.Keys(s.Tags)) {
		add("tag", "%s=%s", key, s.Tags[key])
	}
	if len(s.StartCommand) > 0 {
		add("start command", "%s", strings.TrimPrefix(strings.Join(s.StartCommand, " "), "sh -c "))
	}
	add("created", "%s", cli.Ago(s.Created))
	switch {
	case !s.Ended.IsZero():
		add("ended", "%s", cli.Ago(s.Ended))
	case !s.Suspended.IsZero():
		add("suspended", "%s; the next operation wakes it", cli.Ago(s.Suspended))
		add("lifetime left", "%s", s.Expires.Sub(s.Suspended).Round(time.Second))
	default:
		add("expires", "%s", cli.Until(s.Expires))
	}
	if s.IdleAction != "" {
		idle := time.Duration(s.IdleTimeoutSeconds * float64(time.Second))
		add("idle", "%s after %s", s.IdleAction, idle)
	}
	switch {
	case s.SnapshotID != "":
		add("snapshot", "%s, made at its end", s.SnapshotID)
	case s.SnapshotError != "":
		add("snapshot", "not made at its end: %s", s.SnapshotError)
	case s.SnapshotOnEnd:
		add("snapshot", "will be made at its end")
	}
	stages := make([]string, len(s.Stages))
	for i, g := range s.Stages {
		stages[i] = fmt.Sprintf("%s %.1f ms", g.Name, g.MS)
	}
	add("steps", "%s", strings.Join(stages, ", "))
	add("cost", "%.6f", s.CostUSD)
	return v
}

// s3Text describes a sandbox's S3 location in one line.
func s3Text(s api.SandboxS3) string {
	text := s.Volume + " and the server's bucket"
	if s.Mount {
		text = "s3://" + s.Bucket + "/" + s.Prefix + " at " + s.MountPath
		if s.ReadOnly {
			text += ", read-only"
		}
		if s.MountError != "" {
			text += "; LOST: " + s.MountError
		}
		if s.SyncError != "" {
			text += "; " + s.SyncError
		}
		return text
	}
	if s.Bucket != "" {
		text = s.Volume + " and s3://" + s.Bucket + "/" + s.Prefix
	}
	if s.Init {
		text += ", downloaded first"
	}
	if s.SyncOnTerminate {
		text += ", uploaded at the end"
	}
	if s.SyncEverySeconds > 0 {
		text += ", uploaded every " + time.Duration(s.SyncEverySeconds*float64(time.Second)).String()
	}
	if s.SyncError != "" {
		text += "; the upload failed, and is retried: " + s.SyncError
	}
	return text
}

func (c commands) sandboxExtend() *cobra.Command {
	var life, idle cli.TimeFlag
	cmd := c.WithOutput(&cobra.Command{
		Use:     "extend SANDBOX [--timeout TIME] [--idle-timeout TIME]",
		Short:   "Extend the lifetime of a sandbox",
		Example: "  harvest sandbox extend dev --timeout 4h",
		Args:    cli.Args(1, 1, "one sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if life == 0 && idle == 0 {
				return cli.Usage(cmd, "nothing to change: give --timeout or --idle-timeout")
			}
			server, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			changed, err := server.ExtendSandbox(cmd.Context(), args[0],
				api.ExtendRequest{TimeoutSeconds: life.Seconds(), IdleTimeoutSeconds: idle.Seconds()})
			if err != nil {
				return err
			}
			return c.Show(oneSandbox(changed))
		},
	}, cli.FormatTable)
	cmd.Flags().Var(&life, "timeout", "lifetime from now on")
	cmd.Flags().Var(&idle, "idle-timeout",
		"time without commands, terminals and connections to ports after which the sandbox ends")
	return cmd
}

func (c commands) sandboxSuspend() *cobra.Command {
	return c.change("suspended", &cobra.Command{
		Use:   "suspend SANDBOX…",
		Short: "Suspend sandboxes: keep their files and processes, and release their resources",
		Long: `Suspend sandboxes. Their files are kept, and their processes and memory if the engine can: gVisor can,
for sandboxes without volumes. The next operation on a suspended sandbox wakes it: a command, a copy,
a connection to a port or a link, or harvest sandbox wake. Its lifetime does not pass meanwhile. A
sandbox in which something runs for a client cannot be suspended.`,
		Example: "  harvest sandbox suspend dev",
	}, func(ctx context.Context, server *client.Client, ref string) error {
		_, err := server.SuspendSandbox(ctx, ref)
		return err
	})
}

func (c commands) sandboxWake() *cobra.Command {
	return c.change("woken", &cobra.Command{
		Use:     "wake SANDBOX…",
		Short:   "Wake suspended sandboxes",
		Example: "  harvest sandbox wake dev",
	}, func(ctx context.Context, server *client.Client, ref string) error {
		_, err := server.WakeSandbox(ctx, ref)
		return err
	})
}

// change makes a command that changes each of the sandboxes that it names. They are done then: "woken", for example.
func (c commands) change(done string, cmd *cobra.Command,
	each func(ctx context.Context, server *client.Client, ref string) error) *cobra.Command {
	cmd.Args = cli.Args(1, -1, "sandboxes")
	cmd.RunE = c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
		return cli.Each(args, done, func(ref string) error { return each(ctx, server, ref) })
	})
	return cmd
}

func (c commands) sandboxRemove() *cobra.Command {
	var cmd *cobra.Command
	var sync bool
	cmd = c.RemovalOrAll(&cobra.Command{
		Use:   "rm SANDBOX…",
		Short: "End sandboxes and release their resources",
		Example: `  harvest sandbox rm dev
  harvest sandbox rm --all`,
	}, "sandboxes", "all sandboxes that have not ended",
		func(ctx context.Context, server *client.Client) (ids []string, err error) {
			found, err := All(ctx, server, api.SandboxFilter{})
			for _, s := range found {
				ids = append(ids, s.ID)
			}
			return ids, err
		}, func(ctx context.Context, server *client.Client, ref string) error {
			if cmd.Flags().Changed("sync") {
				return c.removeSync(ctx, server, ref, sync)
			}
			return server.DestroySandbox(ctx, ref)
		})
	cmd.Flags().BoolVar(&sync, "sync", false,
		"upload their volumes to S3 first; --sync=false prevents it (default: as created)")
	return cmd
}

// removeSync ends a sandbox whose volume may be synced to S3, and reports a failed sync.
func (c commands) removeSync(ctx context.Context, server *client.Client, ref string, sync bool) error {
	before, err := server.Sandbox(ctx, ref)
	if err != nil {
		return err
	}
	if err := server.DestroySandboxSync(ctx, before.ID, sync); err != nil {
		return err
	}
	after, err := server.Sandbox(ctx, before.ID)
	if err == nil && after.S3 != nil && after.S3.SyncError != "" {
		c.Notef("%s: the upload of volume %s to S3 failed, and is retried: %s", ref, after.S3.Volume,
			after.S3.SyncError)
	}
	return err
}
