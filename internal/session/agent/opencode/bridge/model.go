package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// configuration is the part of OpenCode's merged configuration that names models
// (https://opencode.ai/docs/config).
type configuration struct {
	Model            string
	EnabledProviders []string `json:"enabled_providers"`
	Agent, Mode      map[string]struct{ Model string }
}

// allowed reports whether a model is of an enabled provider. Harvest enables the providers to which the session has
// access; without a list, all are enabled.
func (c configuration) allowed(model string) bool {
	provider, _, _ := strings.Cut(model, "/")
	return model == "" || len(c.EnabledProviders) == 0 || slices.Contains(c.EnabledProviders, provider)
}

// chooseModel sets the model of all prompts if a file of the repository names one of a provider that is not enabled:
// the configured model if that is allowed, else the default model of the first enabled provider. OpenCode would fail
// with the model of the file.
func (b *bridge) chooseModel(ctx context.Context) {
	if b.model != "" || b.chosen {
		return
	}
	b.chosen = true
	var c configuration
	if err := b.get(ctx, "/config", &c); err != nil {
		fmt.Fprintln(b.err, "read the configuration:", err) // OpenCode uses its own choice
		return
	}
	foreign := !c.allowed(c.Model)
	for _, agents := range []map[string]struct{ Model string }{c.Agent, c.Mode} {
		for _, a := range agents {
			foreign = foreign || !c.allowed(a.Model)
		}
	}
	if !foreign {
		return
	}
	if c.Model != "" && c.allowed(c.Model) {
		b.model = c.Model
		return
	}
	var known struct{ Default map[string]string }
	if err := b.get(ctx, "/config/providers", &known); err != nil {
		fmt.Fprintln(b.err, "read the default models:", err)
		return
	}
	for _, provider := range c.EnabledProviders {
		if model := known.Default[provider]; model != "" {
			b.model = provider + "/" + model
			return
		}
	}
}

// get decodes the answer of OpenCode's server to a GET.
func (b *bridge) get(ctx context.Context, path string, into any) error {
	resp, err := b.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(io.LimitReader(resp.Body, maxLine)).Decode(into)
}
