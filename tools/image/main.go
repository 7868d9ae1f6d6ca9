// Command image makes images of containers for Kubernetes from the programs in bin.
//
//	image pod -tag NAME [-out FILE] [-push]      the image of sandboxes' pods
//	image server -tag NAME [-out FILE] [-push]   the image of the server
//
// Without -out and -push, it prints the digest of the image only. -push uses the credentials of docker login.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/podimage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.Errorf("usage: image pod|server -tag NAME [-out FILE] [-push]")
	}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	bin := flags.String("bin", "bin", "directory of the programs")
	tag := flags.String("tag", "", "name of the image, such as registry.example.org/harvest/pod:1")
	out := flags.String("out", "", "archive to write, as docker save does")
	push := flags.Bool("push", false, "push the image to its registry")
	if err := flags.Parse(args[1:]); err != nil {
		return errors.Wrapf(err, "parse the arguments")
	}
	ref, err := name.NewTag(*tag)
	if err != nil {
		return errors.Wrapf(err, "parse the name of the image")
	}
	var files []podimage.File
	switch args[0] {
	case "pod":
		files = podimage.Programs(filepath.Join(*bin, "programs"))
	case "server":
		files = []podimage.File{{Name: "usr/bin/harvest", Path: filepath.Join(*bin, "harvest")},
			{Name: rootsFile, Data: roots()}}
	default:
		return errors.Errorf("there is no image %q: write pod or server", args[0])
	}
	img, err := podimage.Build(files)
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return errors.Wrapf(err, "find the digest of the image")
	}
	if *out != "" {
		if err := tarball.WriteToFile(*out, ref, img); err != nil {
			return errors.Wrapf(err, "write the image")
		}
	}
	if *push {
		err := remote.Write(ref, img, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
		if err != nil {
			return errors.Wrapf(err, "push the image")
		}
	}
	_, err = fmt.Fprintf(stdout, "%s@%s\n", ref.Name(), digest)
	return err
}
