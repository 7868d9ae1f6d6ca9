package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image/dockerfile"
	"github.com/RelevanceAI/harvest/internal/tarfs"
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
}

func (c *cli) imageBuild() *cobra.Command {
	req, flags := api.BuildRequest{}, buildFlags{}
	cmd := c.withOutput(&cobra.Command{
		Use:   "build [NAME|DIR]",
		Short: "Build an image if it is missing, and print its id",
		Long: `Builds an image. Without anything it is base, which is what sandboxes have if they ask for no other. A NAME is one of Harvest's own images,
an image that is there already, or one of a registry. A DIR, which begins with a dot or a slash, is a build context with a Dockerfile; -f names
another file, or - for standard input. Without a DIR a Dockerfile has no files to copy. What exists already is not built again, unless
--force-build.

A registry's login comes from a secret with REGISTRY_SERVER, REGISTRY_USERNAME and REGISTRY_PASSWORD, or from this user's Docker configuration.`,
		Example: `  harvest image build
  harvest image build debian:12
  harvest image build . -t team/app:1 --build-arg VERSION=3
  harvest image build ./web -f Dockerfile.dev --target test --secret id=npmrc,src=.npmrc`,
		Args: count(0, 1, "at most one name or directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.readBuild(&req, &flags, args); err != nil {
				return err
			}
			return c.buildImage(cmd.Context(), req, flags.directory, flags.ignore)
		},
	}, formatName)
	f := cmd.Flags()
	f.StringVarP(&flags.file, "file", "f", "", "the Dockerfile; - reads it from standard input (default: DIR/Dockerfile)")
	f.StringArrayVarP(&req.Names, "tag", "t", nil, "what to call the image; repeatable. An older image of that name loses it")
	f.StringArrayVar(&req.Commands, "command", nil, "an instruction of a Dockerfile on top of NAME, such as 'RUN apt-get update'; repeatable")
	f.StringArrayVar(&flags.args, "build-arg", nil, "NAME=VALUE of an ARG; without =VALUE it is this environment's; repeatable")
	f.StringVar(&req.Target, "target", "", "the stage to build (default: the last one)")
	f.StringArrayVar(&flags.secrets, "secret", nil, "id=ID,src=FILE or id=ID,env=NAME, for RUN --mount=type=secret; repeatable")
	f.StringVar(&req.Platform, "platform", "", "the platform, such as linux/amd64 (default: the server's, and no other runs there)")
	f.BoolVar(&flags.pull, "pull", false, "ask registries what names mean now")
	f.StringVar(&req.Login, "registry-secret", "", "the secret with the login of the registry (default: whichever fits)")
	f.BoolVar(&req.Force, "force-build", false, "build it even if it exists")
	f.BoolVar(&req.Force, "force", false, "the same as --force-build")
	return cmd
}

func (c *cli) imagePull() *cobra.Command {
	req := api.BuildRequest{Pull: "always"}
	cmd := c.withOutput(&cobra.Command{
		Use:     "pull NAME",
		Short:   "Fetch an image of a registry, and print its id",
		Long:    `Asks the registry for the current digest of the name, and fetches the missing layers.`,
		Example: "  harvest image pull ghcr.io/owner/name:1.2",
		Args:    count(1, 1, "one name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Base = args[0]
			return c.buildImage(cmd.Context(), req, "", "")
		},
	}, formatName)
	cmd.Flags().StringArrayVarP(&req.Names, "tag", "t", nil, "what else to call the image; repeatable")
	cmd.Flags().StringVar(&req.Platform, "platform", "", "the platform, such as linux/amd64 (default: the server's, and no other runs there)")
	cmd.Flags().StringVar(&req.Login, "registry-secret", "", "the secret with the login of the registry (default: whichever fits)")
	return cmd
}

// buildImage builds and shows an image. directory is the build context, "" for none, and file is the
// Dockerfile.
func (c *cli) buildImage(ctx context.Context, req api.BuildRequest, directory, file string) error {
	with := client.Build{}
	if directory != "" {
		files := contextOf(ctx, directory, file)
		defer files.Close()
		with.Context = files
	}
	server, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	building := c.building()
	with.Progress, with.Log = building.update, building.line
	built, err := server.BuildImageWith(ctx, req, with)
	building.done()
	if err != nil {
		return err
	}
	for _, part := range built.Missing {
		c.notef("missing in the image: %s, because %s", part.Name, part.Reason)
	}
	return c.show(oneImage(built))
}

// contextOf returns the files of a build context as a tar stream, without those that its .dockerignore
// excludes.
func contextOf(ctx context.Context, directory, file string) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(dockerfile.Pack(ctx, directory, file, w)) }()
	return r
}

// readBuild fills the request from arguments and flags.
func (c *cli) readBuild(req *api.BuildRequest, flags *buildFlags, args []string) (err error) {
	if len(args) == 1 {
		if isPath(args[0]) {
			flags.directory = args[0]
		} else {
			req.Base = args[0]
		}
	}
	if flags.file != "" || flags.directory != "" {
		if req.Base != "" {
			err := errors.Newf(errors.Invalid, "%s is not a directory to build a Dockerfile in", req.Base)
			return errors.Remedy(err, "write ./%s if it is one, or leave out --file", req.Base)
		}
		if len(req.Commands) > 0 {
			return errors.Remedy(errors.Newf(errors.Invalid, "--command goes with the name of an image, not with a Dockerfile"), "write the instruction into the Dockerfile")
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
			return errors.Remedy(errors.Newf(errors.Invalid, "the build context %s is not a directory that can be read", flags.directory), "name a directory as the build context")
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

func (c *cli) dockerfile(file, directory string) (string, error) {
	in := c.in
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
		return "", errors.Newf(errors.Invalid, "the Dockerfile has more than %d bytes", maxDockerfile)
	case strings.TrimSpace(string(text)) == "":
		return "", errors.Remedy(errors.Newf(errors.Invalid, "the Dockerfile is empty"), "begin it with FROM")
	}
	return string(text), nil
}

// buildArgs parses NAME=VALUE, or NAME for a value from the environment.
func (c *cli) buildArgs(pairs []string) (map[string]string, error) {
	args := map[string]string{}
	for _, pair := range pairs {
		name, value, given := strings.Cut(pair, "=")
		if name == "" {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "--build-arg %q has no name", pair), "write NAME=VALUE")
		}
		if !given {
			value = c.env(name)
		}
		args[name] = value
	}
	return args, nil
}

// buildSecrets parses id=ID,src=FILE and id=ID,env=NAME.
func (c *cli) buildSecrets(specs []string) (map[string]string, error) {
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
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "a --secret has no id"), "write id=ID,src=FILE or id=ID,env=NAME")
		}
		if file == "" {
			name := fields["env"]
			if name == "" {
				name = id
			}
			if secrets[id] = c.env(name); secrets[id] == "" {
				return nil, errors.Remedy(errors.Newf(errors.Invalid, "the secret %s has no value: the variable %s is not set", id, name), "write id=ID,src=FILE or id=ID,env=NAME")
			}
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, errors.Remedy(tarfs.Explain(err, file), "name a file that you can read with src=")
		}
		secrets[id] = string(text)
	}
	return secrets, nil
}
