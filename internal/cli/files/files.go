package files

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// SandboxFiles returns the command for single files of sandboxes.
func SandboxFiles(base *cli.CLI) *cobra.Command {
	c := commands{base}
	return cli.Group(&cobra.Command{
		Use:   "files",
		Short: "Read and change single files of a sandbox",
		Long: `Read and change single files of a sandbox. No program of its image is needed. To copy directories, use
harvest sandbox cp.`,
		Example: `  harvest sandbox files ls dev:/workspace
  harvest sandbox files cat dev:/etc/os-release
  echo hello | harvest sandbox files put dev:/tmp/hello
  harvest sandbox files watch -r dev:/workspace`,
	}, c.filesList(), c.filesCat(), c.filesPut(), c.filesMove(), c.filesMkdir(), c.filesRemove(), c.filesWatch())
}

// onFile makes a command that works on SANDBOX:PATH.
func (c commands) onFile(cmd *cobra.Command, run func(ctx context.Context, server *client.Client, ref,
	path string) error) *cobra.Command {
	cmd.Args = cli.Args(1, 1, "SANDBOX:PATH")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return c.atFile(cmd, args[0], run) }
	return cmd
}

// atFile runs a command with the server, and with the two parts of SANDBOX:PATH.
func (c commands) atFile(cmd *cobra.Command, place string, run func(ctx context.Context, server *client.Client, ref,
	path string) error) error {
	ref, path, ok := remote(place)
	if !ok {
		return cli.Usage(cmd, "invalid path %q: want SANDBOX:PATH", place)
	}
	server, err := c.Connect(cmd.Context())
	if err != nil {
		return err
	}
	defer server.Close()
	return run(cmd.Context(), server, ref, path)
}

func (c commands) filesList() *cobra.Command {
	return c.WithOutput(c.onFile(&cobra.Command{
		Use: "ls SANDBOX:PATH", Aliases: []string{"list"}, Short: "List a directory, or show a file's metadata",
		Example: "  harvest sandbox files ls dev:/workspace -o json",
	}, func(ctx context.Context, server *client.Client, ref, path string) error {
		found, err := server.ListFiles(ctx, ref, path)
		if errors.KindOf(err) == errors.Invalid { // it may be a file
			var one api.File
			if one, err = server.StatFile(ctx, ref, path, false); err == nil {
				found = []api.File{one}
			}
		}
		if err != nil {
			return err
		}
		v := cli.View{JSON: found, Header: []string{"MODE", "SIZE", "CHANGED", "NAME"}}
		for _, f := range found {
			mode, name := fs.FileMode(f.Mode&0o777), f.Name
			switch f.Kind {
			case "directory":
				mode |= fs.ModeDir
			case "symlink":
				mode |= fs.ModeSymlink
				name += " -> " + f.Link
			}
			v.Names = append(v.Names, f.Name)
			v.Rows = append(v.Rows, []string{mode.String(), cli.Size(f.Size), cli.Ago(f.Modified), name})
		}
		return c.Show(v)
	}), cli.FormatTable)
}

func (c commands) filesCat() *cobra.Command {
	var offset, length int64
	cmd := c.onFile(&cobra.Command{
		Use: "cat SANDBOX:PATH", Short: "Print a file, or a part of it",
		Example: "  harvest sandbox files cat dev:/var/log/app.log --offset 1000 --length 500",
	}, func(ctx context.Context, server *client.Client, ref, path string) error {
		file, err := server.ReadFile(ctx, ref, path, offset, length)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(c.Out, file)
		return err
	})
	cmd.Flags().Int64Var(&offset, "offset", 0, "offset of the first byte")
	cmd.Flags().Int64Var(&length, "length", -1, "number of bytes (default: all)")
	return cmd
}

func (c commands) filesPut() *cobra.Command {
	mode, source, cond := "", "", client.Condition{}
	cmd := c.onFile(&cobra.Command{
		Use: "put SANDBOX:PATH", Short: "Write a file atomically, from standard input or a file of this machine",
		Long: "Write a file atomically: programs in the sandbox see the old content or the new one, never a part.\n\n" +
			"With --if-match, the write fails (exit code 5) unless the file still has that ETag, as printed by\n" +
			"`harvest sandbox files ls -o json`.",
		Example: `  harvest sandbox files put dev:/usr/local/bin/tool --from ./tool --mode 755
  harvest sandbox files put dev:/etc/app.conf --from app.conf --if-match '"2a-18c3-18c3-1f"'`,
	}, func(ctx context.Context, server *client.Client, ref, path string) error {
		var bits uint32
		if mode != "" {
			if _, err := fmt.Sscanf(mode, "%o", &bits); err != nil || bits > 0o7777 {
				return errors.Remedy(errors.Newf(errors.Invalid, "invalid --mode %q", mode),
					"give an octal number, such as 644 or 755")
			}
		}
		if cond.ETag != "" && cond.New {
			return errors.Remedy(errors.Newf(errors.Invalid, "--if-match and --no-clobber exclude each other"),
				"give --if-match for an existing file, --no-clobber for a new one")
		}
		in, bytes, err := c.sized(source)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = server.WriteFileIf(ctx, ref, path, bits, bytes, in, cond)
		if errors.KindOf(err) == errors.Conflict && cond.New {
			err = cli.WithRemedy(err, "replace it without --no-clobber, or with its ETag in --if-match")
		}
		return err
	})
	cmd.Flags().StringVar(&mode, "mode", "", "permissions, in octal (default: those of the existing file, or 644)")
	cmd.Flags().StringVar(&source, "from", "", "file of this machine to read (default: standard input)")
	cmd.Flags().StringVar(&cond.ETag, "if-match", "", "write only if the file has this ETag; \"*\": only if it exists")
	cmd.Flags().BoolVarP(&cond.New, "no-clobber", "n", false, "write only if the file does not exist")
	return cmd
}

// sized returns a file, or standard input, with its size. Input of unknown size is copied to a temporary file,
// because it may exceed the memory.
func (c commands) sized(source string) (io.ReadCloser, int64, error) {
	if source != "" {
		f, err := os.Open(source)
		if err != nil {
			return nil, 0, errors.Remedy(errors.Explainf(err, errors.Invalid, "cannot read the file %s", source),
				"give --from a file that you can read")
		}
		info, err := f.Stat()
		if err != nil || !info.Mode().IsRegular() {
			f.Close()
			return nil, 0, errors.Remedy(errors.Newf(errors.Invalid, "%s: not a file", source),
				"give --from a file, or use harvest sandbox cp")
		}
		return f, info.Size(), nil
	}
	f, err := os.CreateTemp("", "harvest-put-")
	if err != nil {
		return nil, 0, errors.Wrapf(err, "create a temporary file")
	}
	err = os.Remove(f.Name()) // the file disappears when it is closed
	n := int64(0)
	if err == nil {
		n, err = io.Copy(f, c.In)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, 0, errors.Wrapf(err, "store standard input")
	}
	return f, n, nil
}

func (c commands) filesMove() *cobra.Command {
	overwrite := false
	cmd := &cobra.Command{
		Use: "mv SANDBOX:FROM TO", Short: "Move or rename a file or directory",
		Example: "  harvest sandbox files mv dev:/tmp/a /tmp/b",
		Args:    cli.Args(2, 2, "SANDBOX:FROM and TO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.atFile(cmd, args[0], func(ctx context.Context, server *client.Client, ref, from string) error {
				_, err := server.MoveFile(ctx, ref, api.MoveRequest{From: from, To: args[1], Overwrite: overwrite})
				if errors.KindOf(err) == errors.Conflict && !overwrite {
					err = cli.WithRemedy(err, "choose another name, or replace it with --force")
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&overwrite, "force", "f", false, "replace an existing file")
	return cmd
}

func (c commands) filesMkdir() *cobra.Command {
	parents := false
	cmd := c.onFile(&cobra.Command{Use: "mkdir SANDBOX:PATH", Short: "Create a directory",
		Example: "  harvest sandbox files mkdir -p dev:/workspace/a/b"},
		func(ctx context.Context, server *client.Client, ref, path string) error {
			_, err := server.MakeDirectory(ctx, ref, api.MkdirRequest{Path: path, Parents: parents})
			return err
		})
	cmd.Flags().BoolVarP(&parents, "parents", "p", false, "create missing parents, and accept an existing directory")
	return cmd
}

func (c commands) filesRemove() *cobra.Command {
	recursive, cond := false, client.Condition{}
	cmd := c.onFile(&cobra.Command{Use: "rm SANDBOX:PATH", Short: "Remove a file or directory",
		Example: "  harvest sandbox files rm -r dev:/tmp/build"},
		func(ctx context.Context, server *client.Client, ref, path string) error {
			return server.RemoveFileIf(ctx, ref, path, recursive, cond)
		})
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "remove a directory with all its contents")
	cmd.Flags().StringVar(&cond.ETag, "if-match", "", "remove the file only if it has this ETag")
	return cmd
}

func (c commands) filesWatch() *cobra.Command {
	recursive := false
	cmd := c.onFile(&cobra.Command{
		Use: "watch SANDBOX:PATH", Short: "Print changes of files, one per line, until interrupted",
		Long: "Print changes of files until interrupted, one per line: created, changed or removed, and the path.\n" +
			"A rename over an existing file, as by git and editors, is a change of that file. The line \"lagged\"\n" +
			"means that changes were skipped.",
		Example: "  harvest sandbox files watch -r dev:/workspace",
	}, func(ctx context.Context, server *client.Client, ref, path string) error {
		return server.WatchFiles(ctx, ref, path, recursive, func(change api.FileChange) error {
			_, err := fmt.Fprintln(c.Out, change.Kind, cli.Escaped(change.Path))
			return err
		})
	})
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also watch all directories below it")
	return cmd
}
