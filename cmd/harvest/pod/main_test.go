package main

import (
	"os"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.MainByHand(m, main)) }

func TestByHand(t *testing.T) { testenv.ByHand(t) }
