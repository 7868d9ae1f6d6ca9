package images

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// maxDockerfile is the maximum size of a Dockerfile.
const maxDockerfile = 512 << 10

// buildFlags are the flags of harvest image build.
type buildFlags struct {
	file      string
	args      []string
	secrets   []string
	pull      bool
	directory string
	ignore    string // the Dockerfile, for NAME.dockerignore beside it
	verbose   bool   // show each line of package managers
}

func (c commands) imageBuild() *cobra.Command {
	req, flags := api.BuildRequest{}, buildFlags{}
	cmd := c.WithOutput(&cobra.Command{
		Use:   "build [NAME|DIR]",
		Short: "Build an image if it is missing, and print its id",
		Long: `Build an image. The argument decides the source:

  (none)   base, the default image of sandboxes
  NAME     one of Harvest's own images, an existing image, or one of a registry
  DIR      a build context with a Dockerfile; DIR begins with a dot or a slash

-f names another Dockerfile, or "-" for standard input. Without DIR, a Dockerfile has no files to
copy. An image that exists is not built again, unless --force-build is given.

The credentials of a registry come from a secret with REGISTRY_SERVER, REGISTRY_USERNAME and
REGISTRY_PASSWORD, or from this user's Docker configuration.`,
		Example: `  harvest image build
  harvest image build debian:12
  harvest image build . -t team/app:1 --build-arg VERSION=3
  harvest image build ./web -f Dockerfile.dev --target test --secret id=npmrc,src=.npmrc`,
		Args: cli.Args(0, 1, "at most one name or directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.readBuild(&req, &flags, args); err != nil {
				return err
			}
			return c.buildImage(cmd.Context(), req, flags)
		},
	}, cli.FormatName)
	f := cmd.Flags()
	f.StringVarP(&flags.file, "file", "f", "", "Dockerfile; - for standard input (default: DIR/Dockerfile)")
	f.StringArrayVarP(&req.Names, "tag", "t", nil,
		"name of the image, repeatable; an older image of that name loses it")
	f.StringArrayVar(&req.Commands, "command", nil,
		"instruction of a Dockerfile to run on top of NAME, such as 'RUN apt-get update', repeatable")
	f.StringArrayVar(&flags.args, "build-arg", nil,
		"NAME=VALUE of an ARG, repeatable; NAME alone takes the value of the environment variable")
	f.StringVar(&req.Target, "target", "", "stage to build (default: the last one)")
	f.StringArrayVar(&flags.secrets, "secret", nil,
		"id=ID,src=FILE or id=ID,env=NAME, for RUN --mount=type=secret; repeatable")
	f.StringVar(&req.Platform, "platform", "",
		"platform, such as linux/amd64 (default: the server's; no other can run there)")
	f.BoolVar(&flags.pull, "pull", false, "check registries for newer images")
	f.StringVar(&req.Login, "registry-secret", "", "secret with the registry's credentials (default: a matching one)")
	f.BoolVar(&req.Force, "force-build", false, "build the image even if it exists")
	f.BoolVar(&req.Force, "force", false, "alias of --force-build")
	f.BoolVarP(&flags.verbose, "verbose", "v", false, "show each line of apt, dpkg and npm, not only their number")
	return cmd
}

func (c commands) imagePull() *cobra.Command {
	req := api.BuildRequest{Pull: "always"}
	cmd := c.WithOutput(&cobra.Command{
		Use:     "pull NAME",
		Short:   "Fetch an image from a registry, and print its id",
		Long:    `Fetch the missing layers of the image that the name currently refers to.`,
		Example: "  harvest image pull ghcr.io/owner/name:1.2",
		Args:    cli.Args(1, 1, "one name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Base = args[0]
			return c.buildImage(cmd.Context(), req, buildFlags{})
		},
	}, cli.FormatName)
	cmd.Flags().StringArrayVarP(&req.Names, "tag", "t", nil, "further name of the image, repeatable")
	cmd.Flags().StringVar(&req.Platform, "platform", "",
		"platform, such as linux/amd64 (default: the server's; no other can run there)")
	cmd.Flags().StringVar(&req.Login, "registry-secret", "",
		"secret with the registry's credentials (default: a matching one)")
	return cmd
}

// buildImage builds and shows an image.
func (c commands) buildImage(ctx context.Context, req api.BuildRequest, flags buildFlags) error {
	with := client.Build{}
	if flags.directory != "" {
		files, err := c.contextOf(ctx, flags.directory, flags.ignore)
		if err != nil {
			return err
		}
		defer files.Close()
		with.Context = files
	}
	server, err := c.Connect(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	building := c.Building()
	building.Verbose = flags.verbose
	with.Progress, with.Log = building.Update, building.Line
	built, err := server.BuildImageWith(ctx, req, with)
	building.Done()
	if err != nil {
		return err
	}
	for _, part := range built.Missing {
		c.Notef("missing in the image: %s (%s)", part.Name, part.Reason)
	}
	return c.Show(Details(built))
}

// readBuild fills the request from arguments and flags.
func (c commands) readBuild(req *api.BuildRequest, flags *buildFlags, args []string) (err error) {
	if len(args) == 1 {
		if isPath(args[0]) {
			flags.directory = args[0]
		} else {
			req.Base = args[0]
		}
	}
	if flags.file != "" || flags.directory != "" {
		if req.Base != "" {
			err := errors.Newf(errors.Invalid, "%s: not a build context", req.Base)
			return errors.Remedy(err, "write ./%s for a directory, or omit --file", req.Base)
		}
		if len(req.Commands) > 0 {
			return errors.Remedy(errors.Newf(errors.Invalid, "--command needs the name of an image, not a Dockerfile"),
				"write the instruction into the Dockerfile")
		}
		if req.Dockerfile, err = c.dockerfile(flags.file, flags.directory); err != nil {
			return err
		}
		if flags.ignore = flags.file; flags.ignore == "-" {
			flags.ignore = ""
		}
		if flags.ignore == "" && flags.directory != "" {
			flags.ignore = filepath.Join(flags.directory, "Dockerfile")
		}
		if info, err := os.Stat(flags.directory); flags.directory != "" && (err != nil || !info.IsDir()) {
			return errors.Remedy(errors.Newf(errors.Invalid, "build context %s: not a readable directory",
				flags.directory), "name a directory as the build context")
		}
	}
	if flags.pull {
		req.Pull = "always"
	}
	if req.Args, err = c.buildArgs(flags.args); err != nil {
		return err
	}
	req.Secrets, err = c.buildSecrets(flags.secrets)
	return err
}

// isPath reports whether an argument is a path: image names begin with a letter or digit.
func isPath(arg string) bool { return strings.HasPrefix(arg, ".") || strings.HasPrefix(arg, "/") }

func (c commands) dockerfile(file, directory string) (string, error) {
	in := c.In
	if file != "-" {
		if file == "" {
			file = strings.TrimRight(directory, "/") + "/Dockerfile"
		}
		f, err := os.Open(file)
		if err != nil {
			return "", errors.Remedy(tarfs.Explain(err, file), "name the Dockerfile with --file")
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxDockerfile+1))
	switch {
	case err != nil:
		return "", errors.Remedy(tarfs.Explain(err, file), "name the Dockerfile with --file")
	case len(text) > maxDockerfile:
		return "", errors.Newf(errors.Invalid, "Dockerfile: more than %d bytes", maxDockerfile)
	case strings.TrimSpace(string(text)) == "":
		return "", errors.Remedy(errors.Newf(errors.Invalid, "Dockerfile: empty"), "begin the Dockerfile with FROM")
	}
	return string(text), nil
}

// buildArgs parses NAME=VALUE, or NAME for a value from the environment.
func (c commands) buildArgs(pairs []string) (map[string]string, error) {
	args := map[string]string{}
	for _, pair := range pairs {
		name, value, given := strings.Cut(pair, "=")
		if name == "" {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "--build-arg %q: no name", pair), "write NAME=VALUE")
		}
		if !given {
			value = c.Env(name)
		}
		args[name] = value
	}
	return args, nil
}

// buildSecrets parses id=ID,src=FILE and id=ID,env=NAME.
func (c commands) buildSecrets(specs []string) (map[string]string, error) {
	secrets := map[string]string{}
	for _, spec := range specs {
		fields := map[string]string{}
		for field := range strings.SplitSeq(spec, ",") {
			key, value, _ := strings.Cut(field, "=")
			fields[key] = value
		}
		id, file := fields["id"], fields["src"]
		if fields["source"] != "" {
			file = fields["source"]
		}
		if id == "" {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "--secret: no id"),
				"write id=ID,src=FILE or id=ID,env=NAME")
		}
		if file == "" {
			name := fields["env"]
			if name == "" {
				name = id
			}
			if secrets[id] = c.Env(name); secrets[id] == "" {
				return nil, errors.Remedy(errors.Newf(errors.Invalid,
					"secret %s: the environment variable %s is not set", id, name),
					"write id=ID,src=FILE or id=ID,env=NAME")
			}
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, errors.Remedy(tarfs.Explain(err, file), "name a readable file with src=")
		}
		secrets[id] = string(text)
	}
	return secrets, nil
}
