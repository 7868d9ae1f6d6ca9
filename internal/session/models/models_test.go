package models

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/claude"
	"github.com/RelevanceAI/harvest/internal/session/model"
)

// speaker is an agent that speaks to some providers.
type speaker struct {
	claude.Agent
	providers []agent.Provider
}

func (s speaker) Speaks() []agent.Provider { return s.providers }

// TestAccessIsThatOfTheAgentsProvider checks that of an account's credentials, an agent gets that of a provider whose
// API it speaks, with the address of the account.
//
// mission: F6
func TestAccessIsThatOfTheAgentsProvider(t *testing.T) {
	t.Parallel()
	env := map[string]string{"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o",
		"OPENAI_BASE_URL": "https://llm.example.org/v1/", "GOOGLE_API_KEY": "g"}
	gateway, err := model.New(model.Options{Key: []byte("k"),
		Credential: func(_ context.Context, account string, secrets []string,
			providers []model.Provider) (model.Credential, error) {
			if account != "acme" || fmt.Sprint(secrets) != "[mine]" {
				t.Errorf("asked for %s %v", account, secrets)
			}
			c, _ := model.Find(env, providers...)
			return c, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	c := Connector{Gateway: gateway, Direct: true}
	for _, x := range []struct {
		program agent.Agent
		want    *agent.Access
	}{
		{claude.Agent{}, &agent.Access{Kind: agent.AccessKey, Token: "a"}},
		{speaker{providers: []agent.Provider{agent.OpenAI}}, &agent.Access{Kind: agent.AccessOpenAI, Token: "o",
			URL: "https://llm.example.org/v1"}},
		{speaker{providers: []agent.Provider{agent.OpenRouter, agent.Gemini}}, &agent.Access{Kind: agent.AccessGemini,
			Token: "g"}},
		{speaker{providers: []agent.Provider{agent.OpenRouter}}, nil},
	} {
		got, err := c.Access(t.Context(), x.program, "acme", "ses_1", []string{"mine"})
		if err != nil || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", x.want) {
			t.Errorf("%+v, %v, want %+v", got, err, x.want)
		}
	}
}

// TestKeysOfSpeakers checks which keys do not belong into a session's environment.
func TestKeysOfSpeakers(t *testing.T) {
	t.Parallel()
	ofGemini := speaker{providers: []agent.Provider{agent.Gemini}}
	for _, c := range []struct {
		program agent.Agent
		want    []string
	}{
		{claude.Agent{}, model.Keys(model.Anthropic, model.Bedrock)},
		{ofGemini, model.Keys(model.Anthropic, model.Bedrock, model.Gemini)},
	} {
		if got := (Connector{Gateway: &model.Gateway{}}).Withheld(c.program); !slices.Equal(got, c.want) {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
	// Without a gateway, the agent needs the key.
	if err := (Connector{}).CheckKeys(ofGemini, map[string]string{"GEMINI_API_KEY": "g"}); errors.KindOf(err) != "" {
		t.Error(err)
	}
}

// TestPathsOfProviders checks the paths that programs in sandboxes are configured with.
func TestPathsOfProviders(t *testing.T) {
	t.Parallel()
	for p, want := range map[agent.Provider]string{agent.Anthropic: "", agent.Bedrock: "", agent.OpenAI: "/openai/v1",
		agent.OpenRouter: "/openrouter/v1", agent.Gemini: "/gemini"} {
		if got := model.Provider(p).Path(); got != want {
			t.Errorf("%s: %q, want %q", p, got, want)
		}
	}
	for kind, p := range map[agent.AccessKind]model.Provider{agent.AccessKey: model.Anthropic,
		agent.AccessBedrock: model.Bedrock, agent.AccessOpenAI: model.OpenAI, agent.AccessOpenRouter: model.OpenRouter,
		agent.AccessGemini: model.Gemini} {
		if got := model.Default(p); string(got) != string(kind) {
			t.Errorf("%s: %q, want %q", p, got, kind)
		}
	}
}
