package main

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"slices"

	"github.com/RelevanceAI/harvest/client/errors"
)

// carried are the programs in a harvest with a server. The server is cmd/harvest with the tag keeper.
var carried = []string{"cmd/harvest", "cmd/harvest/keeper", "cmd/harvest/sentry", "cmd/harvest/tools", "cmd/harvest/s3"}

// sbom lists the modules of a platform's program, and of the programs that it contains.
func (b *building) sbom(ctx context.Context, on platform, env []string) error {
	programs := carried[:1]
	if on.server() {
		programs, env = carried, append(env, "GOFLAGS=-tags=keeper")
	}
	var boms [][]byte
	for _, program := range programs {
		cmd := exec.CommandContext(ctx, b.cyclonedx, "app", "-json", "-std", "-noserial", "-notimestamp", "-main",
			program, b.clone)
		cmd.Env, cmd.Stderr = b.environment(env...), os.Stderr
		bom, err := cmd.Output()
		if err != nil {
			return errors.Wrapf(err, "make the SBOM of %s", program)
		}
		boms = append(boms, bom)
	}
	text, err := merge(boms)
	if err != nil {
		return err
	}
	return b.create("sbom/"+on.String()+".json", text)
}

// dependency is what an entity of an SBOM needs.
type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// merge returns the first SBOM with the components of all. The needs of each program are those of the first one, which
// contains them.
func merge(boms [][]byte) ([]byte, error) {
	var first map[string]any
	components, needs := map[string]map[string]any{}, map[string][]string{}
	var root string
	for _, text := range boms {
		var bom struct {
			Metadata struct {
				Component struct {
					Ref string `json:"bom-ref"`
				} `json:"component"`
			} `json:"metadata"`
			Components   []map[string]any `json:"components"`
			Dependencies []dependency     `json:"dependencies"`
		}
		if err := json.Unmarshal(text, &bom); err != nil {
			return nil, errors.Wrapf(err, "decode an SBOM")
		}
		if first == nil {
			root = bom.Metadata.Component.Ref
			if err := json.Unmarshal(text, &first); err != nil {
				return nil, errors.Wrapf(err, "decode an SBOM")
			}
		}
		for _, c := range bom.Components {
			ref, _ := c["bom-ref"].(string)
			components[ref] = c
		}
		for _, d := range bom.Dependencies {
			if d.Ref == bom.Metadata.Component.Ref {
				d.Ref = root
			}
			needs[d.Ref] = append(needs[d.Ref], d.DependsOn...)
		}
	}
	if metadata, ok := first["metadata"].(map[string]any); ok {
		withoutDigests(metadata["tools"])
	}
	var all []map[string]any
	for _, ref := range sorted(components) {
		all = append(all, components[ref])
	}
	var dependencies []dependency
	for _, ref := range sorted(needs) {
		slices.Sort(needs[ref])
		dependencies = append(dependencies, dependency{ref, slices.Compact(needs[ref])})
	}
	first["components"], first["dependencies"] = all, dependencies
	out, err := json.MarshalIndent(first, "", "  ")
	return append(out, '\n'), errors.Wrapf(err, "encode the SBOM")
}

// withoutDigests removes the digests of the program that made the SBOM, which depend on the machine that compiled it.
func withoutDigests(tools any) {
	list, _ := tools.([]any)
	for _, tool := range list {
		if fields, ok := tool.(map[string]any); ok {
			delete(fields, "hashes")
		}
	}
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K {
	var keys []K
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
