"""Agents of LangChain and of smolagents, as their users write them: python framework_agents.py KIND BASE_URL TOTAL."""

import sys


class Sum:
    def __init__(self, total):
        self.total = total

    def add(self, n: int) -> str:
        """Adds.

        Args:
            n: a number
        """
        self.total += n
        return str(self.total)


def langchain(base_url, adder):
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=base_url, api_key="none", model="policy")
    agent = create_agent(model, [adder.add], system_prompt="You add.")
    agent.invoke({"messages": [{"role": "user", "content": f"Begin at {adder.total}."}]})


def smolagents(base_url, adder):
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    def add(n: int) -> str:
        return adder.add(n)

    add.__doc__ = adder.add.__doc__
    model = OpenAIServerModel("policy", api_base=base_url, api_key="none")
    agent = ToolCallingAgent(tools=[tool(add)], model=model, verbosity_level=0)
    agent.prompt_templates["system_prompt"] = "You add."
    agent.run(f"Begin at {adder.total}.")


if __name__ == "__main__":
    _, kind, base_url, total = sys.argv
    adder = Sum(int(total))
    {"langchain": langchain, "smolagents": smolagents}[kind](base_url, adder)
    print(adder.total / 10)
