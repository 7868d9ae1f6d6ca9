package main

import (
	"context"
	"io"
	"net/http"
	"time"

	"golang.org/x/mod/semver"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// newestRelease is the list of files of the newest release. Their names contain its version.
const newestRelease = "https://github.com/RelevanceAI/harvest/releases/latest/download/checksums.txt"

var releasedFile = pattern.New(`(?m)^[0-9a-f]+  harvest_([0-9]+\.[0-9]+\.[0-9]+[^_]*)_`)

// newest returns the version of the newest release.
func newest(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", errors.Remedy(errors.Explainf(err, errors.Invalid, "invalid address %q", url), "correct --url")
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment}}
	resp, err := client.Do(req)
	if err != nil {
		return "", errors.Remedy(errors.Explainf(err, errors.Unavailable, "cannot reach %s: %v", url, err),
			"check the network, or name another address with --url")
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", errors.Explainf(err, errors.Unavailable, "cannot read %s: %v", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", errors.Remedy(errors.Newf(errors.NotFound, "%s answers %s", url, resp.Status),
			"name the checksums.txt of a release with --url")
	}
	found := releasedFile().FindSubmatch(text)
	if found == nil {
		return "", errors.Remedy(errors.Newf(errors.NotFound, "%s names no release of Harvest", url),
			"name the checksums.txt of a release with --url")
	}
	return string(found[1]), nil
}

// standing compares the newest release with this version.
func standing(version, newest string) string {
	switch order := semver.Compare("v"+newest, "v"+version); {
	case !semver.IsValid("v" + version):
		return "this is a build of a commit"
	case order > 0:
		return "newer than this"
	case order < 0:
		return "older than this"
	}
	return "this is it"
}
