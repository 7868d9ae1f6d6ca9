package broker

import (
	"os"
	"testing"

	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

func TestMain(m *testing.M) { os.Exit(s3test.M{M: m}.Run()) }
