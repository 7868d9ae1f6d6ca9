package app

import (
	"cmp"
	"context"
	"os"

	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/store"
)

// openModels opens the model gateway, which uses the credentials in the accounts' secrets.
func openModels(cfg config.Config, secrets *secret.Vault) (*model.Gateway, error) {
	key, err := store.SigningKey(cfg.Data)
	if err != nil {
		return nil, err
	}
	rules, err := rulesOf(cfg)
	if err != nil {
		return nil, err
	}
	return model.New(model.Options{
		Regional: transports(rules, model.NewTransport),
		Upstreams: map[model.Provider]string{
			model.Anthropic: cmp.Or(cfg.Model.URL, os.Getenv("ANTHROPIC_BASE_URL")),
			model.Bedrock:   os.Getenv("ANTHROPIC_BEDROCK_BASE_URL"),
			model.OpenAI:    os.Getenv("OPENAI_BASE_URL"), model.OpenRouter: os.Getenv("OPENROUTER_BASE_URL"),
			model.Gemini: os.Getenv("GOOGLE_GEMINI_BASE_URL"),
		},
		Prices: cfg.Model.Prices, Key: key,
		Credential: func(ctx context.Context, account string, names []string,
			providers []model.Provider) (model.Credential, error) {
			_, found, err := secrets.Find(ctx, account, names, model.Keys(providers...))
			if err != nil {
				return model.Credential{}, err
			}
			c, _ := model.Find(found, providers...)
			if c.Kind == model.ChatGPTLogin {
				c.Owner = grant.Grant{Access: c.Value}.Owner()
			}
			return c, nil
		},
	})
}
