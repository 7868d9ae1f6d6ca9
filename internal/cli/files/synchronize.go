package files

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// bucketHelp explains S3 locations in the help of the commands that use them.
const bucketHelp = `Without s3://BUCKET/PREFIX, the server's bucket is used (s3.bucket in the configuration); each volume
has a prefix there. Otherwise the credentials come from the secret "aws" (or --secret):
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if needed, AWS_SESSION_TOKEN and AWS_REGION.`

// bucketOf splits s3://BUCKET/PREFIX, which may be missing.
func bucketOf(args []string) (bucket, prefix string, err error) {
	if len(args) < 2 {
		return "", "", nil
	}
	rest, ok := strings.CutPrefix(args[1], "s3://")
	if bucket, prefix, _ = strings.Cut(rest, "/"); !ok || bucket == "" {
		return "", "", errors.Remedy(errors.Newf(errors.Invalid, "invalid S3 location %.200q", args[1]),
			"write s3://BUCKET/PREFIX")
	}
	return bucket, prefix, nil
}

func (c commands) volumeSync() *cobra.Command {
	var req api.VolumeSyncRequest
	var down, both bool
	cmd := &cobra.Command{
		Use:   "sync VOLUME [s3://BUCKET/PREFIX]",
		Short: "Synchronize a volume with S3",
		Long: `Upload the changes of a volume to S3, or with --down download those in S3. Only --mirror and
--both delete files. Each file is an object of the same path, readable by any tool. The next sync resumes an
interrupted one.

` + bucketHelp,
		Example: `  harvest volume sync data s3://my-bucket/data
  harvest volume sync data s3://my-bucket/data --down --mirror --dry-run
  harvest volume sync data --version latest --down`,
		Args: cli.Args(1, 2, "a volume and optionally an S3 location"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) (err error) {
			if req.Bucket, req.Prefix, err = bucketOf(args); err != nil {
				return err
			}
			if req.Direction, err = direction(down, both); err != nil {
				return err
			}
			if req.Version != "" && !down {
				return errors.Remedy(errors.Newf(errors.Invalid, "--version %.40s restores a version", req.Version),
					"add --down to restore it; to save a new version, use --versioned")
			}
			if req.Version != "" {
				req.Versioned = true
			}
			if req.Version == "latest" {
				req.Version = ""
			}
			return c.synchronize(args[0], func(show func(api.SyncStats)) (api.Synced, error) {
				return server.SyncVolume(ctx, args[0], req, show)
			})
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&down, "down", false, "download from S3 into the volume")
	f.BoolVar(&both, "both", false, "synchronize in both directions, deletions included")
	f.BoolVar(&req.Mirror, "mirror", false, "delete files of the target that the source does not have")
	f.StringVar(&req.Conflicts, "conflicts", "",
		"with --both, resolution of files that both sides changed: both, newer, local or remote")
	f.BoolVar(&req.Versioned, "versioned", false, "save a new version, and keep earlier ones")
	f.StringVar(&req.Version, "version", "", "with --down, version to restore: one of volume versions, or latest")
	f.StringVar(&req.Path, "path", "", "only files below this path of the volume")
	f.StringVar(&req.Secret, "secret", "", "secret with the bucket's credentials (default: aws)")
	f.BoolVar(&req.List, "list", false, "list all objects, to see changes that others made in the bucket")
	f.BoolVar(&req.Contents, "contents", false, "compare contents, not only sizes and times")
	f.BoolVar(&req.DeleteMany, "delete-many", false,
		"allow the sync to delete most files of a side, or all because the other side is empty")
	f.BoolVarP(&req.DryRun, "dry-run", "n", false, "print the plan, and do nothing")
	return c.WithOutput(cmd, cli.FormatTable)
}

// direction is the direction of --down and --both; the default is up.
func direction(down, both bool) (string, error) {
	switch {
	case down && both:
		return "", errors.Remedy(errors.Newf(errors.Invalid, "--down and --both exclude each other"), "choose one")
	case down:
		return "down", nil
	case both:
		return "both", nil
	}
	return "up", nil
}

// SandboxSync returns the command that synchronizes the volume of a sandbox with S3.
func SandboxSync(base *cli.CLI) *cobra.Command {
	c := commands{base}
	var req api.SandboxSyncRequest
	var down, both bool
	cmd := &cobra.Command{
		Use:   "sync SANDBOX [--down | --both]",
		Short: "Synchronize a sandbox's volume with S3 now",
		Long: `Synchronize the volume and the S3 location that a sandbox was created with (--s3), while it runs.
Only --both deletes files: it also applies the deletions of each side to the other.`,
		Example: `  harvest sandbox sync dev
  harvest sandbox sync dev --down`,
		Args: cli.Args(1, 1, "one sandbox"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) (err error) {
			if req.Direction, err = direction(down, both); err != nil {
				return err
			}
			return c.synchronize(args[0], func(show func(api.SyncStats)) (api.Synced, error) {
				return server.SyncSandbox(ctx, args[0], req, show)
			})
		}),
	}
	cmd.Flags().BoolVar(&down, "down", false, "download from S3 into the volume")
	cmd.Flags().BoolVar(&both, "both", false, "synchronize in both directions, deletions included")
	cmd.Flags().BoolVar(&req.DeleteMany, "delete-many", false,
		"allow --both to delete most files of a side, or all because the other side is empty")
	return c.WithOutput(cmd, cli.FormatTable)
}

// synchronize runs a sync, and shows its progress and its result. If the sync ends with an error, it shows the
// conflicts and failures until then: the sync keeps its decisions, and no later one reports them.
func (c commands) synchronize(name string, run func(func(api.SyncStats)) (api.Synced, error)) error {
	var last api.SyncStats
	show := c.syncing(name)
	done, err := run(func(s api.SyncStats) {
		last = s
		show(s)
	})
	if _, tty := cli.Terminal(c.Err); tty && !c.Quiet {
		fmt.Fprint(c.Err, "\r\x1b[K")
	}
	if err != nil {
		c.remarks(last)
		return err
	}
	return c.synced(done)
}

// remarks shows the decisions about conflicts, and the failures, of a sync. They are not hints: --quiet shows them too.
func (c commands) remarks(s api.SyncStats) {
	for _, d := range slices.Concat(s.Decided, s.Ignored, s.Failures) {
		text := cli.Escaped(d.Path) + ": " + cli.Escaped(d.Reason)
		if d.Remedy != "" {
			text += "; " + cli.Escaped(d.Remedy)
		}
		c.Warnf("%s", text)
	}
	if s.Refusal != "" {
		c.Warnf("%s", cli.Escaped(s.Refusal))
	}
	if s.Unconditional {
		c.Warnf("this S3 server ignores conditional writes: a simultaneous change by another machine can be lost")
	}
}

// syncing shows the progress of a sync that takes long.
func (c commands) syncing(volume string) func(api.SyncStats) {
	start, last := time.Now(), time.Time{}
	_, tty := cli.Terminal(c.Err)
	waiting := ""
	return func(s api.SyncStats) {
		if s.Waiting != waiting { // a wait is reported once
			if waiting = s.Waiting; waiting != "" && !c.Quiet {
				if tty {
					fmt.Fprint(c.Err, "\r\x1b[K")
				}
				c.Notef("waiting for %s", waiting)
			}
		}
		if waiting != "" {
			return
		}
		if c.Quiet || time.Since(start) < cli.Patience || time.Since(last) < 200*time.Millisecond || !tty &&
			time.Since(last) < 10*time.Second {
			return
		}
		last = time.Now()
		text := soFar(volume, s, tty)
		if tty {
			fmt.Fprintf(c.Err, "\r\x1b[K%s", text)
			return
		}
		fmt.Fprintln(c.Err, text)
	}
}

// soFar describes a running sync in one line, with a bar once the total is known.
func soFar(volume string, s api.SyncStats, bar bool) string {
	const width = 20
	far := ""
	if s.Total > 0 {
		far = fmt.Sprintf("%d%% of %s, ", s.Seen*100/s.Total, cli.Size(s.Total))
		if n := int(s.Seen * width / s.Total); bar {
			far = "[" + strings.Repeat("=", n) + strings.Repeat(" ", width-n) + "] " + far
		}
	}
	return fmt.Sprintf("harvest: %s: %s%d files, %s, %s/s; %d unchanged, %d failed", volume, far, s.Files,
		cli.Size(s.Bytes), cli.Size(int64(s.Rate)), s.Skipped, s.Failed)
}

// synced shows the result of a sync: a plan, or one row; then the failures. It returns an error if there were
// failures.
func (c commands) synced(done api.Synced) error {
	v := cli.View{JSON: done, Names: []string{done.Place + done.Version}, Header: []string{"PLACE", "FILES", "SIZE",
		"UNCHANGED", "UPDATED", "DELETED", "FAILED", "TIME"},
		Rows: [][]string{{done.Place + done.Version, fmt.Sprint(done.Files), cli.Size(done.Bytes),
			fmt.Sprint(done.Skipped), fmt.Sprint(done.Updated), fmt.Sprint(done.Deleted), fmt.Sprint(done.Failed),
			(time.Duration(done.Duration) * time.Millisecond).String()}}}
	if len(done.Plan) > 0 {
		v.Header, v.Rows = []string{"ACTION", "SIZE", "PATH"}, nil
		for _, a := range done.Plan {
			v.Rows = append(v.Rows, []string{a.Action, cli.Size(a.Size), cli.Escaped(a.Path)})
		}
	}
	err := c.Show(v)
	if err != nil {
		return err
	}
	c.remarks(done.SyncStats)
	switch done.Failed {
	case 0:
		return nil
	case 1:
		err = errors.Newf(errors.Conflict, "1 path was not synchronised")
	default:
		err = errors.Newf(errors.Conflict, "%d paths were not synchronised", done.Failed)
	}
	return errors.Remedy(err, "see the reasons above, and sync again")
}

func (c commands) volumeVersions() *cobra.Command {
	secret := ""
	cmd := &cobra.Command{
		Use:     "versions VOLUME [s3://BUCKET/PREFIX]",
		Short:   "List the versions of a volume in S3, newest first",
		Long:    "List the versions that harvest volume sync --versioned has saved.\n\n" + bucketHelp,
		Example: "  harvest volume versions data",
		Args:    cli.Args(1, 2, "a volume and optionally an S3 location"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			bucket, prefix, err := bucketOf(args)
			if err != nil {
				return err
			}
			found, err := server.VolumeVersions(ctx, args[0], bucket, prefix, secret)
			if err != nil {
				return err
			}
			return c.Show(cli.Table(found, []string{"VERSION", "CREATED", "STATE"},
				func(v api.VolumeVersion) (string, []string) {
					state := "whole"
					if !v.Whole {
						state = "unfinished"
					}
					return v.Version, []string{v.Version, cli.Ago(v.Created), state}
				}))
		}),
	}
	cmd.Flags().StringVar(&secret, "secret", "", "secret with the bucket's credentials (default: aws)")
	return c.WithOutput(cmd, cli.FormatTable)
}

func (c commands) volumePrune() *cobra.Command {
	secret, keep := "", 0
	cmd := &cobra.Command{
		Use:   "prune VOLUME [s3://BUCKET/PREFIX] --keep N",
		Short: "Delete old versions of a volume in S3",
		Long: "Delete all but the latest N versions that harvest volume sync --versioned has saved.\n\n" +
			bucketHelp,
		Example: "  harvest volume prune data --keep 3",
		Args:    cli.Args(1, 2, "a volume and optionally an S3 location"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			bucket, prefix, err := bucketOf(args)
			if err != nil {
				return err
			}
			return server.PruneVersions(ctx, args[0], bucket, prefix, secret, keep)
		}),
	}
	cmd.Flags().IntVar(&keep, "keep", 0, "number of versions to keep")
	_ = cmd.MarkFlagRequired("keep")
	cmd.Flags().StringVar(&secret, "secret", "", "secret with the bucket's credentials (default: aws)")
	return cmd
}
