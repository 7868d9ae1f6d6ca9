package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

const repository = "https://github.com/RelevanceAI/harvest"

// checksums writes the SHA-256 of each file, as sha256sum does.
func (p *packing) checksums() error {
	names, err := p.artifacts()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, name := range names {
		sum, err := digest(filepath.Join(p.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s  %s\n", sum, name)
	}
	return p.create("checksums.txt", []byte(text.String()))
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", errors.Wrapf(err, "read a file of the release")
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", errors.Wrapf(err, "read %s", path)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// resource is a ResourceDescriptor of in-toto.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// statement is an in-toto statement with a predicate of SLSA: https://slsa.dev/spec/v1.0/provenance.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     struct {
		Definition struct {
			BuildType    string            `json:"buildType"`
			External     map[string]string `json:"externalParameters"`
			Internal     map[string]any    `json:"internalParameters"`
			Dependencies []resource        `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
		Run struct {
			Builder struct {
				ID string `json:"id"`
			} `json:"builder"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

// provenance writes the origin of the files. It has no time and no name of the run, which would make builds differ,
// and no signature.
func (p *packing) provenance() error {
	names, err := p.artifacts()
	if err != nil {
		return err
	}
	var s statement
	s.Type, s.PredicateType = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
	for _, name := range names {
		sum, err := digest(filepath.Join(p.out, name))
		if err != nil {
			return err
		}
		s.Subject = append(s.Subject, resource{Name: name, Digest: map[string]string{"sha256": sum}})
	}
	var systems []string
	for _, on := range platforms {
		systems = append(systems, on.OS+"/"+on.Arch)
	}
	definition := &s.Predicate.Definition
	definition.BuildType = repository + "/blob/main/docs/install.md#provenance"
	definition.External = map[string]string{"source": "git+" + repository, "version": p.Version}
	definition.Internal = map[string]any{"go": p.Go, "platforms": systems,
		"SOURCE_DATE_EPOCH": strconv.FormatInt(p.Time, 10)}
	definition.Dependencies = []resource{
		{URI: "git+" + repository + "@" + p.Commit, Digest: map[string]string{"gitCommit": p.Commit}},
		{Name: "go.sum", Digest: map[string]string{"sha256": p.Sums}},
	}
	s.Predicate.Run.Builder.ID = repository + "/blob/main/Makefile#release"
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return errors.Wrapf(err, "encode")
	}
	return p.create("harvest_"+p.Version+"_provenance.json", append(text, '\n'))
}
