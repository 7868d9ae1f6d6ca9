package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
)

func (c *cli) sandboxFiles() *cobra.Command {
	return group(&cobra.Command{
		Use:   "files",
		Short: "Look at files of a sandbox, and change them, one by one",
		Long:  "Works on single files of a sandbox, whatever programs its image has. To copy directories: harvest sandbox cp.",
		Example: `  harvest sandbox files ls dev:/workspace
  harvest sandbox files cat dev:/etc/os-release
  echo hello | harvest sandbox files put dev:/tmp/hello
  harvest sandbox files watch -r dev:/workspace`,
	}, c.filesList(), c.filesCat(), c.filesPut(), c.filesMove(), c.filesMkdir(), c.filesRemove(), c.filesWatch())
}

// onFile makes a command that works on SANDBOX:PATH.
func (c *cli) onFile(cmd *cobra.Command, run func(ctx context.Context, server *client.Client, ref, path string) error) *cobra.Command {
	cmd.Args = count(1, 1, "SANDBOX:PATH")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ref, path, ok := remote(args[0])
		if !ok {
			return usage(cmd, "%q is not SANDBOX:PATH", args[0])
		}
		server, err := c.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer server.Close()
		return run(cmd.Context(), server, ref, path)
	}
	return cmd
}

func (c *cli) filesList() *cobra.Command {
	return c.withOutput(c.onFile(&cobra.Command{
		Use: "ls SANDBOX:PATH", Aliases: []string{"list"}, Short: "List a directory, or look at a file",
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
		v := view{json: found, header: []string{"MODE", "SIZE", "CHANGED", "NAME"}}
		for _, f := range found {
			mode, name := fs.FileMode(f.Mode&0o777), f.Name
			switch f.Kind {
			case "directory":
				mode |= fs.ModeDir
			case "symlink":
				mode |= fs.ModeSymlink
				name += " -> " + f.Link
			}
			v.names = append(v.names, f.Name)
			v.rows = append(v.rows, []string{mode.String(), size(f.Size), ago(f.Modified), name})
		}
		return c.show(v)
	}), formatTable)
}

func (c *cli) filesCat() *cobra.Command {
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
		_, err = io.Copy(c.out, file)
		return err
	})
	cmd.Flags().Int64Var(&offset, "offset", 0, "byte to begin with")
	cmd.Flags().Int64Var(&length, "length", -1, "so many bytes (default all)")
	return cmd
}

func (c *cli) filesPut() *cobra.Command {
	mode, source, cond := "", "", client.Condition{}
	cmd := c.onFile(&cobra.Command{
		Use: "put SANDBOX:PATH", Short: "Write a file whole, from standard input or a file of this machine",
		Long: "Writes a file whole: programs in the sandbox see the old content or the new one, never a part.\n\n" +
			"With --if-match the write fails (exit code 5) unless the file still has that ETag, which `files ls -o json` prints.",
		Example: `  harvest sandbox files put dev:/usr/local/bin/tool --from ./tool --mode 755
  harvest sandbox files put dev:/etc/app.conf --from app.conf --if-match '"2a-18c3-18c3-1f"'`,
	}, func(ctx context.Context, server *client.Client, ref, path string) error {
		var bits uint32
		if mode != "" {
			if _, err := fmt.Sscanf(mode, "%o", &bits); err != nil || bits > 0o7777 {
				return errors.Remedy(errors.Newf(errors.Invalid, "--mode cannot be %q", mode), "write it in octal, such as 644 or 755")
			}
		}
		if cond.ETag != "" && cond.New {
			return errors.Remedy(errors.Newf(errors.Invalid, "--if-match and --no-clobber exclude each other"), "give --if-match for a file that exists, --no-clobber for a new one")
		}
		in, bytes, err := c.sized(source)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = server.WriteFileIf(ctx, ref, path, bits, bytes, in, cond)
		return err
	})
	cmd.Flags().StringVar(&mode, "mode", "", "permissions in octal (default those that it has, or 644)")
	cmd.Flags().StringVar(&source, "from", "", "file of this machine (default standard input)")
	cmd.Flags().StringVar(&cond.ETag, "if-match", "", "write only if the file has this ETag; \"*\": only if it exists")
	cmd.Flags().BoolVarP(&cond.New, "no-clobber", "n", false, "write only if the file does not exist")
	return cmd
}

// sized returns a file, or standard input, with its size. Input of unknown size is copied to a temporary file,
// because it may exceed the memory.
func (c *cli) sized(source string) (io.ReadCloser, int64, error) {
	if source != "" {
		f, err := os.Open(source)
		if err != nil {
			return nil, 0, errors.Remedy(errors.Explainf(err, errors.Invalid, "the file %s cannot be read", source), "give --from a file that you can read")
		}
		info, err := f.Stat()
		if err != nil || !info.Mode().IsRegular() {
			f.Close()
			return nil, 0, errors.Remedy(errors.Newf(errors.Invalid, "%s is no file", source), "give --from a file, or use harvest sandbox cp")
		}
		return f, info.Size(), nil
	}
	f, err := os.CreateTemp("", "harvest-put-")
	if err != nil {
		return nil, 0, errors.Wrapf(err, "make a temporary file")
	}
	err = os.Remove(f.Name()) // the file disappears when it is closed
	n := int64(0)
	if err == nil {
		n, err = io.Copy(f, c.in)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, 0, errors.Wrapf(err, "keep standard input")
	}
	return f, n, nil
}

func (c *cli) filesMove() *cobra.Command {
	overwrite := false
	cmd := &cobra.Command{
		Use: "mv SANDBOX:FROM TO", Short: "Move or rename a file or directory",
		Example: "  harvest sandbox files mv dev:/tmp/a /tmp/b",
		Args:    count(2, 2, "SANDBOX:FROM and TO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, from, ok := remote(args[0])
			if !ok {
				return usage(cmd, "%q is not SANDBOX:PATH", args[0])
			}
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			_, err = server.MoveFile(cmd.Context(), ref, api.MoveRequest{From: from, To: args[1], Overwrite: overwrite})
			return err
		},
	}
	cmd.Flags().BoolVarP(&overwrite, "force", "f", false, "replace a file that is there")
	return cmd
}

func (c *cli) filesMkdir() *cobra.Command {
	parents := false
	cmd := c.onFile(&cobra.Command{Use: "mkdir SANDBOX:PATH", Short: "Make a directory", Example: "  harvest sandbox files mkdir -p dev:/workspace/a/b"},
		func(ctx context.Context, server *client.Client, ref, path string) error {
			_, err := server.MakeDirectory(ctx, ref, api.MkdirRequest{Path: path, Parents: parents})
			return err
		})
	cmd.Flags().BoolVarP(&parents, "parents", "p", false, "make missing parents, and accept an existing directory")
	return cmd
}

func (c *cli) filesRemove() *cobra.Command {
	recursive, cond := false, client.Condition{}
	cmd := c.onFile(&cobra.Command{Use: "rm SANDBOX:PATH", Short: "Remove a file or directory", Example: "  harvest sandbox files rm -r dev:/tmp/build"},
		func(ctx context.Context, server *client.Client, ref, path string) error {
			return server.RemoveFileIf(ctx, ref, path, recursive, cond)
		})
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "a directory with all that is in it")
	cmd.Flags().StringVar(&cond.ETag, "if-match", "", "remove it only if it has this ETag")
	return cmd
}

func (c *cli) filesWatch() *cobra.Command {
	recursive := false
	cmd := c.onFile(&cobra.Command{
		Use: "watch SANDBOX:PATH", Short: "Print what changes, a line each, until interrupted",
		Long: "Print what changes, a line each, until interrupted: created, changed or removed, and the path. A file that another replaces by a\n" +
			"rename, as editors and git write files, has changed. The line \"lagged\" says that there were more changes than could be printed.",
		Example: "  harvest sandbox files watch -r dev:/workspace",
	}, func(ctx context.Context, server *client.Client, ref, path string) error {
		return server.WatchFiles(ctx, ref, path, recursive, func(change api.FileChange) error {
			_, err := fmt.Fprintln(c.out, change.Kind, escaped(change.Path))
			return err
		})
	})
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "in all directories below it, too")
	return cmd
}
