package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
)

func (c *cli) sandboxCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "sandbox",
		Aliases: []string{"sbx"},
		Short:   "Manage sandboxes",
		Long: `Manage sandboxes that live until they are removed or expire. A sandbox is named by its id, a prefix of
its id, or its name.`,
		Example: `  harvest sandbox create --name dev
  harvest sandbox exec dev -- python3 --version
  harvest sandbox cp report.csv dev:/tmp/
  harvest sandbox rm dev`,
	}, c.sandboxCreate(), c.sandboxList(), c.sandboxGet(), c.sandboxExec(), c.sandboxShell(), c.sandboxCopy(),
		c.sandboxFiles(), c.sandboxProcesses(),
		c.sandboxLogs(), c.sandboxStats(), c.sandboxNetwork(), c.sandboxPort(), c.sandboxLinks(), c.sandboxExtend(),
		c.sandboxSnapshot(), c.sandboxFork(), c.sandboxSync(), c.sandboxRemove())
}

func (c *cli) sandboxCreate() *cobra.Command {
	var box sandboxFlags
	var where processFlags
	var life, idle timeFlag
	var onEnd bool
	var ports []string
	cmd := c.withOutput(&cobra.Command{
		Use:   "create [flags]",
		Short: "Create a sandbox and print its id",
		Example: `  harvest sandbox create --name dev --memory 4GiB -v data:/data
  harvest sandbox create --s3 s3://my-bucket/work:/work:init:sync
  harvest sandbox create --s3 s3://my-bucket/data:/data:mount:ro
  id=$(harvest sandbox create --timeout 2h --idle-timeout 10m)`,
		Args: count(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := box.request(cmd)
			if err != nil {
				return err
			}
			if req.Env, err = c.environment(where.envFile, where.env); err != nil {
				return err
			}
			req.Workdir, req.User, req.SnapshotOnEnd = where.workdir, where.user, onEnd
			for _, text := range ports {
				port, err := parsePort(text)
				if err != nil {
					return err
				}
				req.Ports = append(req.Ports, port)
			}
			req.TimeoutSeconds, req.IdleTimeoutSeconds = life.seconds(), idle.seconds()
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			building := c.building()
			made, err := server.CreateSandbox(cmd.Context(), req, building.update)
			building.done()
			if err != nil {
				return err
			}
			return c.show(oneSandbox(made))
		},
	}, formatName)
	box.add(cmd)
	where.addWhere(cmd)
	addPorts(cmd, &ports, "port that \"harvest sandbox port\" forwards, repeatable")
	cmd.Flags().BoolVar(&onEnd, "snapshot-on-end", false,
		"make an image of its files when it ends, for any reason; \"sandbox get\" shows the image")
	cmd.Flags().Var(&life, "timeout", "maximum lifetime (default: timeout of the configuration)")
	cmd.Flags().Var(&idle, "idle-timeout",
		"time without commands, terminals and connections to ports after which it ends (default: idle_timeout of the configuration)")
	return cmd
}

func (c *cli) sandboxList() *cobra.Command {
	var filter api.SandboxFilter
	var tagTexts []string
	ended := ""
	cmd := listing(c, &cobra.Command{
		Short: "List sandboxes, newest first",
		Example: `  harvest sandbox ls --tag team=search
  harvest sandbox ls --all -o json`,
	}, []string{"ID", "NAME", "STATUS", "IMAGE", "CREATED", "EXPIRES"},
		func(ctx context.Context, server *client.Client) (_ []api.Sandbox, err error) {
			if filter.Tags, err = tags(tagTexts); err != nil {
				return nil, err
			}
			if c.format == formatTable && !filter.All {
				if ended, err = countEnded(ctx, server, filter); err != nil {
					return nil, err
				}
			}
			return everySandbox(ctx, server, filter)
		}, func(s api.Sandbox) (string, []string) {
			expires := "-"
			if s.Ended.IsZero() {
				expires = until(s.Expires)
			}
			return s.ID, []string{s.ID, orDash(s.Name), s.Status, s.Image, ago(s.Created), expires}
		})
	list := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := list(cmd, args)
		if err == nil && ended != "" {
			c.notef("%s ended; to list them: harvest sandbox ls --all", ended)
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

// everySandbox returns all pages.
func everySandbox(ctx context.Context, server *client.Client, filter api.SandboxFilter) ([]api.Sandbox, error) {
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

func (c *cli) sandboxGet() *cobra.Command {
	return c.withOutput(&cobra.Command{
		Use:     "get SANDBOX",
		Short:   "Show a sandbox",
		Example: "  harvest sandbox get dev -o json",
		Args:    count(1, 1, "one sandbox"),
		RunE: c.withServer(func(ctx context.Context, server *client.Client, args []string) error {
			found, err := server.Sandbox(ctx, args[0])
			if err != nil {
				return err
			}
			return c.show(oneSandbox(found))
		}),
	}, formatTable)
}

// oneSandbox shows all details of a sandbox.
func oneSandbox(s api.Sandbox) view {
	v := view{json: s, names: []string{s.ID}}
	add := func(name, format string, args ...any) {
		v.rows = append(v.rows, []string{name, fmt.Sprintf(format, args...)})
	}
	add("id", "%s", s.ID)
	add("name", "%s", orDash(s.Name))
	add("status", "%s", s.Status)
	if s.Reason != "" {
		add("reason", "%s", s.Reason)
	}
	add("isolation", "%s", s.Isolation)
	add("image", "%s (%s)", s.Image, orDash(s.ImageID))
	add("limits",
		"%g cores, %s of memory, %s of disk, %d processes, %d open files, %d files in a volume (0 or -: none)",
		s.Limits.CPU, size(s.Limits.Memory), size(s.Limits.Disk), s.Limits.Processes, s.Limits.Files,
		s.Limits.VolumeFiles)
	if s.GPU != "" {
		add("gpu", "%s", s.GPU)
	}
	add("network", "%s", networkText(s.Network))
	for _, d := range s.Denials {
		add("denied", "%s, %s", denialText(d), ago(d.Time))
	}
	for _, port := range s.Ports {
		add("port", "%d", port)
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
	add("created", "%s", ago(s.Created))
	if s.Ended.IsZero() {
		add("expires", "%s", until(s.Expires))
	} else {
		add("ended", "%s", ago(s.Ended))
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

func (c *cli) sandboxExtend() *cobra.Command {
	var life, idle timeFlag
	cmd := c.withOutput(&cobra.Command{
		Use:     "extend SANDBOX [--timeout TIME] [--idle-timeout TIME]",
		Short:   "Extend the lifetime of a sandbox",
		Example: "  harvest sandbox extend dev --timeout 4h",
		Args:    count(1, 1, "one sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if life == 0 && idle == 0 {
				return usage(cmd, "nothing to change: give --timeout or --idle-timeout")
			}
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			changed, err := server.ExtendSandbox(cmd.Context(), args[0],
				api.ExtendRequest{TimeoutSeconds: life.seconds(), IdleTimeoutSeconds: idle.seconds()})
			if err != nil {
				return err
			}
			return c.show(oneSandbox(changed))
		},
	}, formatTable)
	cmd.Flags().Var(&life, "timeout", "lifetime from now on")
	cmd.Flags().Var(&idle, "idle-timeout",
		"time without commands, terminals and connections to ports after which it ends")
	return cmd
}

func (c *cli) sandboxRemove() *cobra.Command {
	var cmd *cobra.Command
	var sync bool
	cmd = c.removalOrAll(&cobra.Command{
		Use:   "rm SANDBOX…",
		Short: "End sandboxes and release their resources",
		Example: `  harvest sandbox rm dev
  harvest sandbox rm --all`,
	}, "sandboxes", "all sandboxes that have not ended",
		func(ctx context.Context, server *client.Client) (ids []string, err error) {
			found, err := everySandbox(ctx, server, api.SandboxFilter{})
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
func (c *cli) removeSync(ctx context.Context, server *client.Client, ref string, sync bool) error {
	before, err := server.Sandbox(ctx, ref)
	if err != nil {
		return err
	}
	if err := server.DestroySandboxSync(ctx, before.ID, sync); err != nil {
		return err
	}
	after, err := server.Sandbox(ctx, before.ID)
	if err == nil && after.S3 != nil && after.S3.SyncError != "" {
		c.notef("%s: the upload of volume %s to S3 failed, and is retried: %s", ref, after.S3.Volume,
			after.S3.SyncError)
	}
	return err
}

// removeEach removes every ref, even if one fails. It returns the first failure. If several
// fail, its text has their number.
func removeEach(refs []string, remove func(ref string) error) error {
	var first error
	failed := 0
	for _, ref := range refs {
		if err := remove(ref); err != nil {
			failed++
			if first == nil {
				first = err
			}
		}
	}
	if failed > 1 {
		return errors.Explainf(first, errors.KindOf(first), "%d of %d could not be removed; the first: %s", failed,
			len(refs), errors.Message(first))
	}
	return first
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
