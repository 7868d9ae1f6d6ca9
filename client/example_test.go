package client_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/RelevanceAI/harvest/client"
)

// HARVEST_URL has the address of a server, and HARVEST_API_KEY a key that "harvest key create" printed.
func Example() {
	harvest, err := client.At(os.Getenv("HARVEST_URL"), os.Getenv("HARVEST_API_KEY"))
	if err != nil {
		log.Fatal(err)
	}
	defer harvest.Close()
	result, err := harvest.Execute(context.Background(), "print(6*7)", 30*time.Second)
	if err != nil {
		log.Fatal(err) // the code did not run
	}
	fmt.Println(result.ReturnCode, result.Stdout)
}
